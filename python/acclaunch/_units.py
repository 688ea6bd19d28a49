# SPDX-License-Identifier: Apache-2.0
"""Uses of units: hooks of modules and of autograd that open and end the library's scopes.

A unit's module has two forms. Between uses its attributes are ShardedParameters. During a use they
are `working` parameters, whose data are views of the gathered memory. autograd saves views of
this memory for the backward. If the library may move it, `GatheredMemory` saves names instead.

A use of a unit in a forward that needs a backward goes through this cycle:

    before_forward  after_forward  begin_backward  (gradients)  end_backward
                                    |                            |
           hook on the outputs -----'      hook on the inputs ---' or the end of the whole backward

autograd runs nodes in the reverse order of their creation, and accumulates a gradient as soon as it
is complete. So when the hook on an input runs, every gradient of the unit has been accumulated."""

import ctypes as c
import functools
import sys

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from acclaunch._library import InvalidArgumentError, library
from acclaunch._parameters import Uncopied, view

in_backward = torch._C._current_graph_task_id  # -1 outside
# The innermost saved_tensors_hooks. torch before 2.8 has no such function; there a checkpoint around a
# whole sharded module saves the tensors of the module.
top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


class Member:
    """A distinct parameter of a unit. slots: (module, attribute) of each place that holds it."""

    def __init__(self, names, slots, sharded, working, handle):
        self.names, self.slots, self.sharded, self.working = names, slots, sharded, working
        self.handle = handle
        self.address = None
        self.gradients = {}  # views of the memory for the gradient, by address

    def put(self, parameter):
        for module, attribute in self.slots:
            if type(module).__setattr__ is torch.nn.Module.__setattr__:
                module._parameters[attribute] = parameter
            else:  # torch.nn.RNNBase keeps its parameters in a second list
                setattr(module, attribute, parameter)


class GatheredMemory:
    """Saved tensors of autograd that are views of memory which the library frees and reuses: saved are
    the parameter and the view's strides."""

    def __init__(self):
        self.members = {}  # by address, with their unit
        self.depth = 0
        self.hooks = None

    def pack(self, tensor):
        found = self.members.get(tensor.untyped_storage().data_ptr())
        if found is None:
            return tensor
        return (*found, tensor.size(), tensor.stride(), tensor.storage_offset())

    @staticmethod
    def unpack(saved):
        if isinstance(saved, torch.Tensor):
            return saved
        unit, member, size, stride, offset = saved
        unit.require_backward(member)
        return member.working.detach().as_strided(size, stride, offset)

    def enter(self):
        """Hooks of the outermost unit serve the units in it. Hooks of others (activation
        checkpointing) either drop what they are given or copy it, and stay."""
        if self.depth == 0 and top_hooks(True) is None:
            self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
            self.hooks.__enter__()
        self.depth += 1

    def leave(self):
        self.depth -= 1
        if self.depth == 0 and self.hooks is not None:
            self.hooks.__exit__(None, None, None)
            self.hooks = None


class Use:
    """A forward of a unit that awaits its backward."""

    __slots__ = ("unit", "handle", "ended")

    def __init__(self, unit):
        self.unit, self.handle, self.ended = unit, None, False

    def begin_backward(self, *_):
        unit = self.unit
        if self.handle is not None:
            return
        unit.model.enter_backward(self)
        self.handle = unit.library.make("backward_begin", unit.handle)
        unit.awaiting.remove(self)
        unit.backwards.append(self)
        unit.locate(unit.library.backward_raw, self.handle)
        unit.place()  # for parts of the unit that are computed again (torch.utils.checkpoint)

    def end_backward(self, *_):
        if self.handle is None or self.ended:
            return
        self.ended = True
        self.unit.backwards.remove(self)
        self.unit.remove()
        self.unit.forget_addresses()
        self.unit.library.backward_end(self.handle)


class Forward:
    """An open forward of a module. exception: the one that was handled when it began."""

    def __init__(self, exception):
        self.exception = exception
        self.use = self.handle = self.no_grad = None
        self.saves = False


class Unit(Uncopied):
    """A unit of the library and its module."""

    def __init__(self, model, module, name, handle):
        self.library = library()
        self.model, self.module, self.name, self.handle = model, module, name, handle
        self.is_root = module is model.module
        self.members = []
        self.keeps_addresses = False
        self.forwards = []    # open Forwards of this module
        self.awaiting = []    # Uses whose backward has not begun
        self.backwards = []   # Uses whose backward has begun and not ended
        self.used = False     # since the last step: a forward that needs a backward
        self.wrote = False    # since the last step: a gradient

    def install(self):
        """Adds the hooks. Called when the parameters have been declared and initialised."""
        self.keeps_addresses = self.library.read("unit_keeps_addresses", c.c_int, self.handle) == 1
        self.trains = any(member.working.requires_grad for member in self.members)
        self.needs_backward = any(each.requires_grad for each in self.module.parameters())
        for member in self.members:
            if member.working.requires_grad:
                member.working.register_post_accumulate_grad_hook(
                    functools.partial(self.take_gradient, member))
            member.put(member.sharded)
        self.module.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True)
        self.module.register_forward_hook(self.after_forward, with_kwargs=True,
                                          always_call=True)

    # ---- memory

    def locate(self, function, use):
        """Points the working parameters at the gathered memory. function: forward_raw or
        backward_raw."""
        address = c.c_void_p()
        reference = c.byref(address)
        model = self.model
        for member in self.members:
            if member.address is not None and self.keeps_addresses:
                return
            function(use, member.handle, reference)
            if member.address != address.value:
                member.address = address.value
                member.working.data = view(address.value, member.sharded.shape,
                                           model.compute_dtype, model.device)
            if not self.keeps_addresses:
                model.memory.members[address.value] = (self, member)

    def forget_addresses(self):
        if not self.keeps_addresses and not self.forwards and not self.backwards:
            for member in self.members:
                self.model.memory.members.pop(member.address, None)

    def place(self):
        for member in self.members:
            member.put(member.working)

    def remove(self):
        if not self.forwards and not self.backwards:
            for member in self.members:
                member.put(member.sharded)

    # ---- forward

    def before_forward(self, module, arguments, keywords):
        if torch.compiler.is_compiling():
            raise InvalidArgumentError(
                "torch.compile around a unit of acc.fully_shard: compile the forward of the units "
                "that contain no other unit, after acc.fully_shard: unit.compile()")
        model = self.model
        if model.gathered:
            return None
        forward = Forward(sys.exc_info()[1])
        self.forwards.append(forward)  # after_forward removes it, also if this hook raises
        inside = in_backward() != -1
        if self.is_root and len(self.forwards) == 1 and not inside:
            model.check_module()
        tensors = [each for each in tree_leaves((arguments, keywords))
                   if isinstance(each, torch.Tensor)]
        model.check_inputs(self, tensors)
        if inside and self.backwards:
            pass  # recomputed in its own backward, which has gathered the parameters
        elif inside and self.awaiting:
            forward.handle = self.library.make("recompute_begin", self.handle)
        else:
            needs_backward = torch.is_grad_enabled() and (
                self.needs_backward or any(each.requires_grad for each in tensors))
            if not needs_backward:
                forward.no_grad = self.library.make("no_grad_begin", model.handle)
            forward.handle = self.library.make("forward_begin", self.handle)
            if needs_backward:
                forward.use = Use(self)
        if forward.handle is not None:
            self.locate(self.library.forward_raw, forward.handle)
        self.place()
        if forward.use is not None:
            self.used = True
            self.awaiting.append(forward.use)
            if not self.keeps_addresses:
                forward.saves = True
                model.memory.enter()
        if model.casts_inputs:
            arguments, keywords = tree_map_only(torch.Tensor, model.cast, (arguments, keywords))
        if forward.use is not None and not self.is_root:
            def ends_backward(tensor):
                if tensor.requires_grad:
                    # autograd runs the hook of a leaf before gradients that are ready as well.
                    tensor = tensor.view_as(tensor) if tensor.is_leaf else tensor
                    tensor.register_hook(forward.use.end_backward)
                return tensor

            arguments, keywords = tree_map_only(torch.Tensor, ends_backward, (arguments, keywords))
        return arguments, keywords

    def after_forward(self, module, arguments, keywords, output):
        if not self.forwards:  # acc.gathered, or torch.compile gave up in before_forward
            return None
        forward = self.forwards.pop()
        self.remove()
        if forward.saves:
            self.model.memory.leave()
        error = sys.exc_info()[1]
        failed = error is not None and error is not forward.exception
        if failed and forward.use is not None:
            # The scopes cannot be ended: their collectives would wait for ranks that continue.
            self.model.runtime.abort(
                f"rank {self.model.runtime.rank} left the forward of unit '{self.name}' because of "
                f"{type(error).__name__}: {error}")
            return None
        if forward.use is not None:
            output = self.after_use(forward.use, output)
        self.forget_addresses()
        if forward.handle is not None:
            self.library.forward_end(forward.handle)
        if forward.no_grad is not None:
            self.library.no_grad_end(forward.no_grad)
        return output

    def after_use(self, use, output):
        if not self.keeps_addresses:
            addresses = {member.address for member in self.members}

            def own(tensor):  # a parameter, or a view of one, that is returned
                return (tensor.clone() if tensor.untyped_storage().data_ptr() in addresses
                        else tensor)

            output = tree_map_only(torch.Tensor, own, output)
        found = False
        for each in tree_leaves(output):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                found = True
                # A hook on the node runs after the hooks on its outputs, which may end the next unit.
                if each.grad_fn is not None:
                    each.grad_fn.register_prehook(use.begin_backward)
                else:
                    each.register_hook(use.begin_backward)
        return output

    # ---- backward

    def require_backward(self, member):
        """Begins the backward if no hook did: an output hides its tensors, or was changed in place."""
        if not self.backwards:
            if not self.awaiting:
                raise InvalidArgumentError(
                    f"parameter '{member.names[0]}' is used outside of its unit '{self.name}': the "
                    "backward of the unit has ended. Use the parameter only in the forward of its "
                    "unit, or give both users one unit")
            self.awaiting[-1].begin_backward()
        return self.backwards[-1]

    def take_gradient(self, member, parameter):
        """Moves a gradient into the library's memory."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        use = self.require_backward(member)
        if gradient.requires_grad:
            raise InvalidArgumentError("backward(create_graph=True): gradients of gradients of sharded "
                                       "parameters are not supported")
        address, beta = c.c_void_p(), c.c_float()
        self.library.backward_raw_grad(use.handle, member.handle, address, beta)
        target = member.gradients.get(address.value)
        if target is None:
            target = member.gradients[address.value] = view(
                address.value, member.sharded.shape, self.model.compute_dtype, self.model.device)
        self.wrote = True
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if beta.value == 0.0:
            target.copy_(gradient)
        else:
            target.add_(gradient)
