# SPDX-License-Identifier: Apache-2.0
"""Uses of units: hooks of modules and of autograd that open and end the library's scopes.

A unit's module has two forms. Between uses its attributes are ShardedParameters. During a use they
are `working` parameters, whose data are views of the gathered memory. autograd saves views of
this memory for the backward. If the library may move it, `GatheredMemory` saves names instead.

A use of a unit in a forward that needs a backward goes through this cycle:

    before_forward  after_forward  begin_backward  (gradients)  end_backward
                                    |                            |
           hook on the outputs -----'      hook on the inputs ---' or the end of the whole backward

The program decides how many backwards a forward has: none (its graph is dropped), one, or several
(retain_graph). A backward that wants no gradient of the unit's parameters only passes through: the
library sees a forward without gradients, in which the parameters have values.

autograd runs nodes in the reverse order of their creation, and accumulates a gradient as soon as it
is complete. So when the hook on an input runs, every gradient of the unit has been accumulated."""

import collections
import contextlib
import copy
import ctypes as c
import dataclasses
import functools
import gc
import sys

import torch
from torch.utils.checkpoint import _StopRecomputationError

from acclaunch._library import Error, Handle, InvalidArgumentError, NotSupportedError, library
from acclaunch._parameters import Uncopied, view

in_backward = torch._C._current_graph_task_id  # -1 outside
# The innermost saved_tensors_hooks. torch before 2.8 has no such function; there a checkpoint around a
# whole sharded module saves the tensors of the module.
top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


def accumulation_of(parameter):
    """The node of autograd that accumulates the gradient of a leaf."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]


_WITHOUT_TENSORS = {type(None), bool, int, float, str}  # most of the arguments of modules


def _like(value, elements):
    """A tuple or list with the class and the attributes of `value`, whose constructor may want something else."""
    if isinstance(value, list):
        made = copy.copy(value)
        made[:] = elements
        return made
    if hasattr(value, "n_fields"):  # torch.return_types
        return type(value)(elements)
    made = tuple.__new__(type(value), elements)
    if hasattr(value, "__dict__"):
        vars(made).update(vars(value))
    return made


def map_tensors(function, value):
    """The value with function(tensor) in place of each tensor in tuples, lists, dictionaries and dataclasses.
    Containers in which nothing changes stay the same objects: a module may append to a list that it is given."""
    if type(value) in _WITHOUT_TENSORS or type(value) is dict and not value:
        return value
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        made = None
        for number, each in enumerate(value):
            new = function(each) if isinstance(each, torch.Tensor) else map_tensors(function, each)
            if new is not each:
                made = list(value) if made is None else made
                made[number] = new
        if made is None:
            return value
        return type(value)(made) if type(value) in (tuple, list) else _like(value, made)
    if isinstance(value, (dict, collections.UserDict)):
        items, replace = value.items(), type(value).__setitem__
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value)]
        replace = object.__setattr__
    else:
        return value
    made = value
    for key, old in list(items):
        new = map_tensors(function, old)
        if new is not old:
            made = copy.copy(value) if made is value else made
            replace(made, key, new)
    return made


def tensors_in(value, found):
    """Appends each tensor in which `map_tensors` would look to `found`."""
    if type(value) in _WITHOUT_TENSORS or type(value) is dict and not value:
        return
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for each in value:
            found.append(each) if isinstance(each, torch.Tensor) else tensors_in(each, found)
    elif isinstance(value, (dict, collections.UserDict)):
        for each in value.values():
            tensors_in(each, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            tensors_in(getattr(value, each.name, None), found)


# A context in which attributes of DTensors are read without their __torch_function__, by these functions in a tenth of
# the time.
as_plain = torch._C.DisableTorchFunctionSubclass
requires_grad_of, grad_of = torch.Tensor.requires_grad.__get__, torch.Tensor.grad.__get__
set_grad_of = torch.Tensor.grad.__set__


def any_requires_grad(tensors):
    if not tensors:
        return False
    with as_plain():
        return any(map(requires_grad_of, tensors))


def places_in(modules, ignored=()):
    """By each parameter of these modules, without ignored ones and those of modules in them: its places (module,
    attribute). Raises NotSupportedError for one of a module of torch.jit, which keeps its own."""
    found = {}
    for module in modules:
        for attribute, parameter in module._parameters.items():
            if parameter is not None and parameter not in ignored:
                if isinstance(module, torch.jit.ScriptModule):
                    raise NotSupportedError(f"parameter '{attribute}' of a module of torch.jit ({module.original_name})"
                                            " cannot be exchanged: shard the module without torch.jit")
                found.setdefault(parameter, []).append((module, attribute))
    return found


def put(slots, parameter):
    """Puts a parameter into its places: (module, attribute)."""
    for module, attribute in slots:
        if type(module).__setattr__ is torch.nn.Module.__setattr__:
            module._parameters[attribute] = parameter
        else:  # torch.nn.RNNBase keeps its parameters in a second list
            setattr(module, attribute, parameter)


class Member:
    """A distinct parameter of a unit. slots: (module, attribute) of each place that holds it."""

    def __init__(self, names, slots, sharded, working, handle):
        self.names, self.slots, self.sharded, self.working = names, slots, sharded, working
        self.handle = handle
        self.trains = working.requires_grad  # at some time; it may be frozen between steps
        self.address = None
        self.storage, self.holders = 0, 0  # of the tensor over the address, and how many tensors it had then
        self.has_gradient = False  # of a backward since the last step
        self.gradients = {}  # views of the memory for the gradient, by address
        self.written = None  # the one of them that the last backward has written
        self.seen = 0  # by rows: the versions of the values that forwards compute with

    def put(self, parameter):
        put(self.slots, parameter)


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
        return (*found, found[1].seen, tensor.size(), tensor.stride(), tensor.storage_offset())

    @staticmethod
    def unpack(saved):
        if isinstance(saved, torch.Tensor):
            return saved
        unit, member, seen, size, stride, offset = saved
        if seen != member.seen:  # as torch says of parameters that are not sharded
            raise RuntimeError(f"one of the variables needed for gradient computation has been modified by an inplace "
                               f"operation: parameter '{member.names[0]}'")
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
    """A forward of a unit that awaits its backward. passes: the forward had no parameter that requires a
    gradient."""

    __slots__ = ("unit", "passes", "steps", "handle", "quiet", "ended_in")

    def __init__(self, unit, passes=False):
        self.unit, self.passes, self.steps = unit, passes, unit.model.steps
        self.handle = None
        self.quiet = False    # the open scope of the library is that of a forward without gradients
        self.ended_in = None  # the backward (graph task) in which it ended

    def begin_backward(self, *_):
        unit, task = self.unit, in_backward()
        if self.handle is not None or self.ended_in == task:
            return
        is_old = self.steps != unit.model.steps
        if is_old and self.ended_in is not None:
            return  # the hook is on a node of a larger graph, which is used again
        if torch.is_grad_enabled():
            raise InvalidArgumentError(
                f"unit '{unit.label}': backward(create_graph=True) and torch.autograd.grad("
                "create_graph=True): gradients of gradients of a sharded module are not supported")
        if is_old:
            raise InvalidArgumentError(
                f"unit '{unit.label}': a backward of a forward that ran before the last "
                "optimizer.step(), which changed the parameters: call backward() before step()")
        unit.model.enter_backward(self)
        if not self.passes:  # else a checkpoint in it computes with the parameters as they were
            unit.follow_requires_grad()
        if self in unit.awaiting:
            unit.awaiting.remove(self)
        self.quiet = self.passes or not unit.wants_gradients()
        self.handle = unit.begin_quietly() if self.quiet else \
            unit.library.make("backward_begin", unit.handle)
        unit.backwards.append(self)
        unit.locate(unit.library.forward_raw if self.quiet else unit.library.backward_raw,
                    self.handle, in_backward=True)
        unit.place()  # for parts of the unit that are computed again (torch.utils.checkpoint)

    def end_backward(self, *_):
        if self.handle is None:
            return
        unit, handle, self.handle = self.unit, self.handle, None
        self.ended_in = in_backward()
        unit.backwards.remove(self)
        unit.remove()
        unit.forget_addresses()
        unit.end_quietly(handle) if self.quiet else unit.end_backward(handle)


class Forward:
    """An open forward of a module. exception: the one that was handled when it began."""

    def __init__(self, exception):
        self.exception = exception
        self.use = self.handle = None
        self.quiet = False
        self.saves = False

    def error(self):
        """The exception that is ending the forward, or None. A checkpoint ends a forward that it repeats on all ranks
        where it has what it wants."""
        found = sys.exc_info()[1]
        return None if found is self.exception or isinstance(found, _StopRecomputationError) else found


class Unit(Uncopied):
    """A unit of the library and its module."""

    def __init__(self, model, module, name, class_name):
        self.library = library()
        self.model, self.module, self.name = model, module, name
        self.modules = [module]
        self.label = name or "root"
        self.is_root = module is model.module
        self.handle = self.library.make("model_root" if self.is_root else "model_unit", model.handle, name.encode(),
                                        class_name.encode())
        self.members = []
        self.gathered = []    # those that the library knows: without elements there is nothing to gather
        self.keeps_addresses = False
        self.whole = None     # a scope that the program has opened, until it ends it
        self.casts_to = model.compute_dtype if model.casts_inputs else None  # floating-point inputs
        self.forwards = []    # open Forwards of this module
        self.awaiting = []    # Uses whose backward has not begun
        self.backwards = []   # Uses whose backward has begun and not ended
        self.left = []        # Forwards that an error has ended, whose scopes are open

    def declare(self, function, name, like, config):
        """Declares a parameter or a buffer, as `function` of the library does. name: within the unit."""
        handle = Handle()
        function(self.handle, name.encode(), (c.c_int64 * like.dim())(*like.shape), like.dim(), config, handle)
        return handle

    def prepare(self):
        """Called when the parameters have been declared and initialised."""
        self.keeps_addresses = self.library.read("unit_keeps_addresses", c.c_int, self.handle) == 1
        self.gathered = [member for member in self.members if member.handle is not None]
        for member in self.members:
            if member.trains:
                self.await_gradients(member)
        self.places = [(module, attribute, member) for member in self.members for module, attribute in member.slots]
        # Those with a second list of their parameters, such as torch.nn.RNNBase.
        self.put_apart = [member for member in self.members if any(
            type(module).__setattr__ is not torch.nn.Module.__setattr__ for module, _ in member.slots)]
        self.remove()
        self.find_trained()

    def own_parameters(self):
        return [member.sharded for member in self.members]

    def find_trained(self):
        self.trained = [member for member in self.members if member.trains]

    def await_gradients(self, member):
        member.working.register_post_accumulate_grad_hook(functools.partial(self.take_gradient, member))

    def install(self):
        """Prepares the unit and adds the hooks."""
        self.prepare()
        self.module.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True)
        self.module.register_forward_hook(self.after_forward, with_kwargs=True,
                                          always_call=True)

    # ---- memory

    def locate(self, function, use, in_backward=False):
        """Points the working parameters at the gathered memory. function: forward_raw or
        backward_raw. in_backward: of an earlier forward."""
        self.check_data()
        if self.keeps_addresses and self.gathered and self.gathered[0].address is not None:
            return
        address = c.c_void_p()
        reference = c.byref(address)
        model = self.model
        for member in self.gathered:
            function(use, member.handle, reference)
            if member.address != address.value:
                if in_backward or self.awaiting:
                    self.check_views(member)
                member.address = address.value
                member.working.data = view(address.value, member.sharded.shape,
                                           member.working.dtype, model.device)
                member.storage = member.working.untyped_storage()._cdata
                member.holders = torch._C._storage_Use_Count(member.storage)
            if not self.keeps_addresses:
                model.memory.members[address.value] = (self, member)

    def check_views(self, member):
        """Where the gathered values have moved since a forward whose backward follows: raises if the program has kept a
        view of the parameter, whose memory has other values by now."""
        count = torch._C._storage_Use_Count
        if not member.storage or count(member.storage) <= member.holders:
            return
        gc.collect()  # what cycles still hold
        if count(member.storage) > member.holders:
            raise NotSupportedError(
                f"a view of parameter '{member.names[0]}' that is kept beyond the forward of its unit '{self.label}', "
                "which frees the gathered values: an autograd function saves it with ctx.save_for_backward, not as an "
                "attribute of ctx, and hooks for saved tensors copy what they keep")

    def check_data(self):
        """Raises if a forward has given a parameter other memory, which the next gather would not change."""
        for each in self.members:
            if each.address is not None and each.working.data_ptr() != each.address and each.working.numel():
                raise NotSupportedError(
                    f"a forward of unit '{self.label}' has exchanged the data of its parameter '{each.names[0]}' "
                    "(.data, Module.to, flatten_parameters): change it in place between two steps")

    def is_in_use(self):
        return self.forwards or self.backwards or self.whole is not None

    def forget_addresses(self):
        if not self.keeps_addresses and not self.is_in_use():
            for member in self.members:
                self.model.memory.members.pop(member.address, None)

    def place(self):
        for module, attribute, member in self.places:
            module._parameters[attribute] = member.working  # DeepSpeed exchanges the dictionaries
        for member in self.put_apart:
            member.put(member.working)

    def remove(self):
        if not self.is_in_use():
            for module, attribute, member in self.places:
                module._parameters[attribute] = member.sharded
            for member in self.put_apart:
                member.put(member.sharded)

    # ---- gradients that the program wants

    def follow_requires_grad(self):
        """The program may change requires_grad between uses, for a phase of its training."""
        with as_plain():
            for member in self.members:
                wanted = requires_grad_of(member.sharded)
                if wanted is not member.working.requires_grad:
                    if member.handle is not None:
                        self.library.unit_set_requires_grad(self.handle, member.handle, wanted)
                    member.working.requires_grad_(wanted)
                    if wanted and not member.trains:
                        member.trains = True
                        self.await_gradients(member)
                        self.find_trained()

    def passes(self):
        """True if the unit is trained, but now no parameter of it requires a gradient."""
        for each in self.trained:
            if each.working.requires_grad:
                return False
        return bool(self.trained)

    def wants_gradients(self):
        """False if the running backward computes no gradient of the unit's parameters. That of
        torch.autograd.grad computes only those that it returns."""
        if self.passes():
            return False
        if torch.autograd._is_checkpoint_valid():
            return True  # of backward(), all
        trained = self.trained or [each for unit in self.model.units for each in unit.trained]
        return any(torch._C._will_engine_execute_node(accumulation_of(each.working))
                   for each in trained if each.working.requires_grad)

    def begin_quietly(self):
        """A forward of the library that expects no backward."""
        no_grad = self.library.make("no_grad_begin", self.model.handle)
        try:
            return self.library.make("forward_begin", self.handle)
        finally:
            self.library.no_grad_end(no_grad)

    def end_quietly(self, handle):
        no_grad = self.library.make("no_grad_begin", self.model.handle)
        try:
            self.library.forward_end(handle)
        finally:
            self.library.no_grad_end(no_grad)

    # ---- forward

    def before_forward(self, module, arguments, keywords):
        if torch.compiler.is_compiling():
            raise InvalidArgumentError(
                "torch.compile around a unit of acc.fully_shard: compile the forward of the units "
                "that contain no other unit, after acc.fully_shard: unit.compile()")
        model = self.model
        if model.gathered:
            return None
        inside = in_backward() != -1
        if not model.open_forwards and not inside:
            model.check_module()
        torch.clear_autocast_cache()  # casts of an earlier use, whose gradients would come after its backward
        forward = Forward(sys.exc_info()[1])
        self.forwards.append(forward)  # after_forward removes it, also if this hook raises
        model.open_forwards += 1
        tensors = []
        tensors_in(arguments, tensors)
        tensors_in(keywords, tensors)
        model.check_inputs(self, tensors)
        flows = any_requires_grad(tensors)
        self.follow_requires_grad()
        if inside and self.backwards:
            pass  # computed in its own backward, which has gathered the parameters
        else:
            needs_backward = torch.is_grad_enabled() and (flows or any_requires_grad(self.module_parameters))
            if needs_backward:
                forward.use = Use(self, self.passes())
            forward.quiet = not needs_backward or forward.use.passes
            if forward.quiet:
                forward.handle = self.begin_quietly()
            else:
                forward.handle = self.library.make(
                    "recompute_begin" if inside else "forward_begin", self.handle)
        if forward.handle is not None:
            self.locate(self.library.forward_raw, forward.handle)
        self.place()
        if forward.use is not None:
            if not inside:
                self.awaiting.append(forward.use)
            elif top_hooks(True) is None:  # else a checkpoint, which only wants the saved tensors
                self.awaiting.insert(0, forward.use)
            if not self.keeps_addresses:
                forward.saves = True
                model.memory.enter()
        ends = forward.use.end_backward if forward.use is not None and not self.is_root else None

        def prepared(tensor):
            if self.casts_to is not None and tensor.is_floating_point():
                tensor = tensor.to(self.casts_to)
            if ends is not None and tensor.requires_grad:
                # autograd runs the hook of a leaf before gradients that are ready as well.
                tensor = tensor.view_as(tensor) if tensor.is_leaf else tensor
                tensor.register_hook(ends)
            return tensor

        if self.casts_to is not None or ends is not None and flows:
            arguments, keywords = map_tensors(prepared, (arguments, keywords))
        return arguments, keywords

    def after_forward(self, module, arguments, keywords, output):
        if not self.forwards:  # acc.gathered, or torch.compile gave up in before_forward
            return None
        forward = self.forwards.pop()
        self.model.open_forwards -= 1
        self.remove()
        if forward.saves:
            self.model.memory.leave()
        error = forward.error()
        # Without a backward all ranks may leave a forward early by an exception, and go on.
        if error is not None and forward.use is not None:
            # The scopes cannot be ended: their collectives would wait for ranks that continue.
            self.model.runtime.abort(
                f"rank {self.model.runtime.rank} left the forward of unit '{self.label}' because of "
                f"{type(error).__name__}: {error}")
            if forward.handle is not None:
                self.left.append(forward)
            return None
        output = self.after_use(forward.use, output)
        self.forget_addresses()
        if forward.handle is not None:
            self.end_quietly(forward.handle) if forward.quiet else \
                self.library.forward_end(forward.handle)
        if not self.model.open_forwards and in_backward() == -1:
            self.model.leave_forward(forward)
        return output

    def after_use(self, use, output):
        """use: None without a backward."""
        addresses = () if self.keeps_addresses else {member.address for member in self.members}
        if use is None and not addresses:
            return output

        def own(tensor):
            if addresses and tensor.untyped_storage().data_ptr() in addresses:
                tensor = tensor.clone()  # a parameter, or a view of one, that is returned
            if use is None:
                return tensor
            if tensor.is_leaf and tensor.requires_grad:
                # The hook of a leaf, such as a parameter, would stay for later forwards.
                tensor = tensor.view_as(tensor)
            if tensor.requires_grad:
                # A hook on the node runs after the hooks on its outputs, which may end the next unit.
                tensor.grad_fn.register_prehook(use.begin_backward)
            return tensor

        return map_tensors(own, output)

    def give_up(self):
        """Ends the scopes that an error has left open, in groups that are lost, and drops the gradients."""
        for each, end in [*((each, self.library.forward_end) for each in self.left),
                          *((each, self.library.backward_end) for each in self.backwards)]:
            with contextlib.suppress(Error):
                self.end_quietly(each.handle) if each.quiet else end(each.handle)
            each.handle = None
        self.left, self.backwards, self.awaiting = [], [], []
        self.remove()
        self.forget_addresses()
        for member in self.members:
            member.has_gradient, member.written = False, None

    # ---- backward

    def require_backward(self, member, writes=False):
        """Returns the Use whose backward runs, and begins it if no hook did: an output hides its tensors,
        or was changed in place. writes: for a gradient."""
        for use in reversed(self.backwards):
            if not (writes and use.quiet):
                return use
        for use in reversed(self.awaiting):
            if not (writes and use.passes):
                use.begin_backward()
                return use
        raise InvalidArgumentError(
            f"parameter '{member.names[0]}' is used outside of its unit '{self.label}': the backward of the unit has "
            "ended. Use the parameter only in the forward of its unit, or give both users one unit. A second backward "
            "(retain_graph=True) needs the unit's outputs as tensors, or in tuples, lists and dictionaries")

    def take_gradient(self, member, parameter):
        """autograd has computed a gradient."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None or not parameter.requires_grad:  # frozen since the forward
            return
        use = self.require_backward(member, writes=True)
        self.model.has_gradients = member.has_gradient = True
        self.give_gradient(use.handle, member, gradient)

    def give_gradient(self, handle, member, gradient):
        """Copies a gradient to the library's memory, or adds it."""
        address, beta = c.c_void_p(), c.c_float()
        self.library.backward_raw_grad(handle, member.handle, address, beta)
        target = member.gradients.get(address.value)
        if target is None:
            target = member.gradients[address.value] = view(
                address.value, member.sharded.shape, member.working.dtype, self.model.device)
        member.written = target
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if beta.value == 0.0:
            target.copy_(gradient)
        else:
            target.add_(gradient)

    def end_backward(self, handle):
        self.library.backward_end(handle)
