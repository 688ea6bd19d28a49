# SPDX-License-Identifier: Apache-2.0
"""The interface of FSDP 2 (torch.distributed.fsdp.fully_shard) on the runtime, for `--engine acc`.

Between uses a module's parameters are DTensors over this rank's rows, in the layout of FSDP 2. From the
first forward on, their local tensors are the runtime's memory. A forward in no other one publishes the rows,
which anything may have changed since the last one: an optimizer, load_state_dict, a copy_. The end of a
backward gives every parameter that it reached its `grad`, a DTensor over ordinary memory.

`fully_shard` may be called before the root is known. So it only makes the DTensors, and the first forward
declares the units of its module's tree to the runtime (`_bind`)."""

import contextlib
import functools
import itertools
import threading
import time
import weakref
import zlib

import torch
import torch.distributed.fsdp
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, UnshardHandle
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from acclaunch import _bitsandbytes, _dtensor, _local, _rows
from acclaunch._library import (INITIALIZER_CONSTANT, InvalidArgumentError, NotSupportedError, ParameterConfig,
                                ShardsFunction, callback, say)
from acclaunch._parameters import DTYPES, Uncopied, checksum, outside_graphs, view
from acclaunch._runtime import Runtime, release
from acclaunch._sharding import Lifetime, Model, _inside, owned_parameters, put_in_later
from acclaunch._units import Member, Unit, as_plain, grad_of, in_backward, map_tensors, places_in, put, set_grad_of

_WORDS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_TRAINED = DTYPES[:3]  # what the runtime converts and sums; other dtypes are bytes for it
_BYTES = {width: DTYPES.index(dtype) for width, dtype in (
    (1, torch.uint8), (2, torch.int16), (4, torch.int32), (8, torch.int64), (16, torch.complex128))}


class _State:
    """What fully_shard knows of the modules that it was given together. slots: of each parameter of the unit, the
    places (module, attribute) that hold it."""

    def __init__(self, modules, mesh, reshard_after_forward, precision, ignored):
        self.modules, self.mesh, self.precision, self.ignored = modules, mesh, precision, ignored
        self.slots = []  # from the first forward on
        self.reshard_after_forward = reshard_after_forward
        self.requires_gradient_sync = self.requires_all_reduce = True
        self.divide_factor = None  # of gradients; None: the number of ranks
        self.reduces_unused = False  # a parameter without gradient on all ranks gets one of zeros
        self.has_one_gradient = False  # FSDP 1: a parameter that no backward reached has zeros if one reached its unit
        self.root_casts_inputs = precision.cast_forward_inputs
        self.settings = {}  # further settings of the runtime
        self.unit = None
        self.summoned = False  # the program has put the parameters' whole values into the module

    def holds_gradients(self):
        return not self.requires_gradient_sync or (self.mesh.ndim == 2 and not self.requires_all_reduce)

    @outside_graphs
    def before_forward(self, module, arguments, keywords):
        if self.summoned:
            return None
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise NotSupportedError(f"a forward of {type(module).__name__} in torch.func (grad, vmap, jacrev): the "
                                    "engine acc does not serve it")
        if self.unit is None:
            _bind(module)
        return self.unit.before_forward(module, arguments, keywords)

    @outside_graphs
    def after_forward(self, module, arguments, keywords, output):
        if self.unit is None:  # _bind failed
            return None
        output = self.unit.after_forward(module, arguments, keywords, output)
        dtype = self.precision.output_dtype
        if dtype is not None and output is not None:
            output = map_tensors(lambda each: each.to(dtype) if each.is_floating_point() else each, output)
        return output


def state_of(module):
    return module.__dict__.get("_acc_state")


class RowMember(Member):
    """own: this rank's rows in the runtime's memory."""

    own = unit = None

    def adopt(self):
        """Takes over what stands in the module now: the program may have replaced the parameter, or its
        local tensor (load_state_dict(assign=True), Module.to_empty)."""
        module, attribute = self.slots[0]
        found, old = module._parameters.get(attribute), self.sharded
        if found is not old:
            if not isinstance(found, DTensor) or (found.shape, found.dtype, found.placements) != (
                    old.shape, old.dtype, old.placements):
                raise InvalidArgumentError(
                    f"parameter '{self.names[0]}' was replaced after the first forward by "
                    f"{'no parameter' if found is None else type(found).__name__ + ' ' + str(list(found.shape))}; "
                    f"expected a DTensor {list(old.shape)} {old.dtype} {old.placements}")
            if found.requires_grad and not isinstance(found, torch.nn.Parameter):
                raise NotSupportedError(f"a forward with a tensor that requires a gradient in place of the parameter "
                                        f"'{self.names[0]}' (torch.func.functional_call): the engine acc gives "
                                        "gradients only to the parameters themselves")
            self._check_ties(found)
            self.stand(found)
            self.put(found)
        elif len(self.slots) > 1:
            self._check_ties(found)
        if found._local_tensor is not self.own:
            self.adopt_values(found, old)

    def adopt_values(self, found, old):
        local = found._local_tensor
        if local.dtype is not self.own.dtype or local.shape != self.own.shape:
            raise InvalidArgumentError(
                f"parameter '{self.names[0]}' became {local.dtype} {list(local.shape)} on this rank after the "
                f"first forward, and was {self.own.dtype} {list(self.own.shape)}")
        if local.is_meta:
            raise InvalidArgumentError(f"parameter '{self.names[0]}' is on the meta device: call "
                                       "to_empty() of the module and give its parameters values")
        if local.data_ptr() != self.own.data_ptr():
            # A result of `.data` of before keeps the values of before, and so does a parameter that may come back. One
            # over the new memory follows it into the runtime's, and so does a state dict from before the first forward.
            aliases = [*(alias for each in {found, old} for alias in _dtensor.take_aliases(each)), old]
            follow = [each for each in aliases if each._local_tensor.data_ptr() == local.data_ptr()]
            for each in aliases:
                if each._local_tensor.data_ptr() == self.own.data_ptr():
                    each._local_tensor = each._local_tensor.clone()
            with torch.no_grad():
                self.own.copy_(local)
            for each in follow:
                each._local_tensor = self.own
        found._local_tensor = self.own

    def is_exchanged(self):
        """True if `adopt` may change the rows. The same on all ranks."""
        module, attribute = self.slots[0]
        found = module._parameters.get(attribute)
        return found is not self.sharded or found._local_tensor is not self.own

    def _check_ties(self, found):
        for module, attribute in self.slots[1:]:
            other = module._parameters.get(attribute)
            if other is not found and not (
                    isinstance(other, DTensor) and torch.equal(other._local_tensor, found._local_tensor)):
                raise InvalidArgumentError(
                    f"parameter '{self.names[0]}' was replaced after the first forward in one of its places, "
                    f"'{attribute}' of {type(module).__name__}, and not in the others with the same values")

    def stand(self, parameter):
        """Makes `parameter` the one that the program sees."""
        model = self.unit.model
        if model.by_parameter.get(self.sharded) is self:
            del model.by_parameter[self.sharded]
        self.sharded = parameter
        model.by_parameter[parameter] = self
        parameter._acc_model = model.number

    def give_gradient(self, gradient, is_own):
        """Sets or adds `grad` of the parameter. gradient: of the shape of own; is_own: its memory is not used for
        anything else."""
        parameter = self.sharded
        factor = self.unit.state.divide_factor
        if factor is not None:
            gradient = gradient.mul_(self.unit.model.runtime.world_size / factor)
        with as_plain():
            hooks, later_hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
            has_gradient = grad_of(parameter) is not None
        if hooks:
            made = _rows.with_spec(gradient.to(self.own.dtype, copy=True), parameter._spec)
            for hook in tuple(hooks.values()):
                found = hook(made)
                made = made if found is None else found
            gradient, is_own = made._local_tensor, False
            has_gradient = parameter.grad is not None
        if has_gradient:
            with as_plain():
                _dtensor.place_gradient(parameter)
                parameter.grad._local_tensor.add_(gradient)
        else:
            if not is_own or gradient.dtype is not self.own.dtype:
                gradient = gradient.to(self.own.dtype, copy=True)
            with as_plain():
                set_grad_of(parameter, _rows.with_spec(gradient, parameter._spec))
        for hook in (later_hooks or {}).values():
            hook(parameter)


class ScalarMember(RowMember):
    """A parameter without dimensions. Its DTensor has the value on each rank, in memory of its own; the first rank's
    is the runtime's."""

    def adopt_values(self, found, _):
        local = found._local_tensor
        if local.dtype is not self.sharded.dtype or local.is_meta:
            raise InvalidArgumentError(f"parameter '{self.names[0]}' became {local.dtype} on {local.device} after the "
                                       "first forward")
        if self.own.numel() and not torch.equal(self.own[0], local):  # else it would count as a change
            with torch.no_grad():
                self.own.copy_(local)


class RowUnit(Unit):
    def __init__(self, model, state, name):
        super().__init__(model, state.modules[0], name, "+".join(type(each).__name__ for each in state.modules))
        self.state, self.modules = state, state.modules
        self.number = len(model.units)
        self.awaited = set()  # modules of a list that have not run yet in this forward of the root
        self.held = False  # gradients are not reduced
        self.computed = {}  # gradients of the running backward, by member
        policy = state.precision
        casts = state.root_casts_inputs if state is model.root else policy.cast_forward_inputs
        self.casts_to = policy.param_dtype if casts else None

    def own_parameters(self):
        return [*super().own_parameters(), *self.state.ignored]

    def begin_quietly(self):
        if self.model.is_divided:
            self.model.quiet_uses.append(self.number)
        return super().begin_quietly()

    def unshard(self):
        if not self.is_in_use():
            self.model.publish_if_idle()
            self.open_whole()

    def open_whole(self):
        self.whole = self.begin_quietly()
        self.locate(self.library.forward_raw, self.whole)
        self.place()

    def reshard(self):
        handle, self.whole = self.whole, None
        if handle is not None:
            self.remove()
            self.forget_addresses()
            self.end_quietly(handle)
            self.model.unfenced = True

    def hold_gradients(self, held):
        if held is not self.held:
            self.library.unit_hold_gradients(self.handle, held)
            self.held = held

    def after_forward(self, module, arguments, keywords, output):
        if len(self.state.modules) > 1 and len(self.forwards) == 1 and self.forwards[0].error() is None:
            self._await_others(module)
        output = super().after_forward(module, arguments, keywords, output)
        if self.state.reshard_after_forward and not self.is_root and not self.forwards and not self.awaited:
            self.reshard()
        return output

    def _await_others(self, module):
        """The parameters of a list of modules stay whole until all of them have run: programs read the weight of one
        in place of calling it."""
        if in_backward() != -1 or not self.model.units[0].forwards:
            return
        is_first = not self.awaited
        self.awaited = (set(self.state.modules) if is_first else self.awaited) - {module}
        if self.awaited and self.whole is None:
            self.open_whole()
        elif not self.awaited and not is_first:
            self.reshard()

    def give_gradient(self, handle, member, gradient):
        """Keeps a gradient until the backward of the unit ends: its memory in the runtime is that of the unit before,
        whose gradients are reduced meanwhile."""
        if self.model.open_forwards:
            raise NotSupportedError(f"a backward in a forward of {type(self.model.module).__name__} gives its "
                                    f"parameter '{member.names[0]}' a gradient: call backward() after the forward "
                                    "(torch.autograd.grad for other tensors is supported)")
        if member.handle is None:
            member.written = gradient
            return
        found = self.computed.get(member)
        if found is not None:  # torch adds sparse ones to dense ones only
            gradient = gradient + found if found.is_sparse else found + gradient
        self.computed[member] = gradient

    def end_backward(self, handle):
        computed, self.computed = self.computed, {}
        for member, gradient in computed.items():
            super().give_gradient(handle, member, gradient)
        super().end_backward(handle)


class RowModel(Model):
    """A tree of modules whose parameters are sharded by rows, and updated by the program."""

    def __init__(self, module, runtime):
        super().__init__(module, runtime, torch.float32, seed=0, unused_units=True, by_rows=True)
        self.root = state_of(module)
        self.number = next(_numbers)
        self.unfenced = False  # a forward has ended, and other ranks may still be in it
        self.is_changed = False  # by the program since the last forward, as on all ranks
        self.published = None  # by publish_whole: by member, the sum of its rows, and of those of each rank
        self.is_divided = self.root.mesh.size(self.root.mesh.ndim - 1) > 1
        self.quiet_uses = []  # numbers of units, in the order of their uses without gradients, until ranks compare

    # ---- declaration

    def declare(self, states):
        """states: (name, state) of all units, the root first."""
        self.names = {each: name for name, each in reversed(list(self.module.named_modules(remove_duplicate=False)))}
        self.members = {}  # by their names in the runtime
        self.by_parameter = {}  # members
        self.without_elements = []  # members that the runtime does not know
        for name, state in states:
            unit = RowUnit(self, state, name)
            self.units.append(unit)
            for slots in state.slots:
                self._declare_parameter(unit, slots)
        self.rows = []  # members, in the order of the runtime's shards

        def take(shards, count, _):
            for shard in shards[:count]:
                member = self.members[shard.name.decode()]
                shape = _shape_of_rows(member.sharded)
                member.own = view(shard.weights, shape, member.sharded.dtype, self.device, self.lifetime)
                self.rows.append(member)

        self.library.model_shards(self.handle, callback(ShardsFunction, take), self.library.callback_context)
        self.storages = {_rows.memory_of(each.own) for each in self.rows}
        for unit in self.units:
            unit.prepare()
            unit.state.unit = unit
        self.remember_module()

    def _declare_parameter(self, unit, slots):
        module, attribute = slots[0]
        sharded = module._parameters[attribute]
        name = clean_tensor_name(f"{self.names[module]}.{attribute}" if self.names[module] else attribute)
        dtypes = _dtypes_of(sharded, unit.state.precision, name)
        working = torch.nn.Parameter(torch.empty(0, dtype=dtypes[1], device=self.device), sharded.requires_grad)
        if sharded.numel() == 0:
            working.data = torch.empty(sharded.shape, dtype=dtypes[1], device=self.device)
            member = RowMember([name], slots, sharded, working, None)
            member.own = torch.empty_like(sharded._local_tensor, device=self.device)
            self.without_elements.append(member)
        else:
            member = self._declare_elements(unit, name, slots, sharded, working, dtypes)
        unit.members.append(member)
        member.unit = unit
        member.stand(sharded)

    def _declare_elements(self, unit, name, slots, sharded, working, dtypes):
        stored, computed, reduced = map(_number_of, dtypes)
        config = ParameterConfig(trainable=sharded.requires_grad, weight_decay=1, own_dtypes=1,
                                 stored_dtype=stored, computed_dtype=computed, reduced_dtype=reduced,
                                 initializer=INITIALIZER_CONSTANT)
        inside = _inside(unit.name, name) if name.startswith(unit.name + ".") else name
        handle = unit.declare(self.library.unit_parameter, inside, sharded, config)
        member = (RowMember if sharded.dim() else ScalarMember)([name], slots, sharded, working, handle)
        self.members[f"{unit.name}.{inside}" if unit.name else inside] = member
        return member

    # ---- forward and backward

    def check_module(self):
        """Before a forward that is in no other one: makes this rank's rows what all ranks see."""
        self.check_backward()
        for unit in self.units:
            if unit.left:
                raise InvalidArgumentError(
                    f"a forward of {type(self.module).__name__} with gradients has ended with an exception: its scopes "
                    "are still open, and the module cannot be used any more. Raise it under torch.no_grad(), or "
                    "before the forward")
        whole = [unit for unit in self.units if unit.whole is not None]
        for unit in whole:
            unit.reshard()
        members = [member for unit in self.units if not unit.state.summoned for member in unit.members]
        if self.unfenced and any(member.is_exchanged() for member in members):
            self.await_ranks()
        for member in members:
            member.adopt()
        if not any(unit.state.summoned for unit in self.units):
            self.check_parameters()
        self._note_changes()
        self.note_versions(self.rows if self.is_divided else ())
        self.library.model_publish(self.handle)
        self.is_changed = False
        for unit in whole:
            unit.open_whole()

    def _note_changes(self):
        """Lets autograd refuse a backward that needs values from before a change of rows, such as an optimizer's step,
        as it does with parameters that are not sharded. A function of torch that changes a DTensor leaves the version
        of its local tensor."""
        with as_plain():
            for member in self.rows:
                versions = member.own._version, member.sharded._version
                if versions != member.seen:
                    member.seen = versions
                    torch.autograd.graph.increment_version(member.working)

    def publish_if_idle(self):
        if not any(unit.is_in_use() for unit in self.units):
            self.check_module()

    def gathers(self):
        """True if each use gathers: between machines, and on GPUs."""
        return not all(unit.keeps_addresses for unit in self.units)

    # ---- whole values without communication

    def publish_whole(self):
        """Lets each rank read whole parameters until the program changes one. Collective. Only for a mesh of one
        dimension."""
        self.published = None
        if self.gathers():
            return
        self.publish_if_idle()
        for unit in self.units:
            handle = unit.begin_quietly()
            unit.locate(self.library.forward_raw, handle)
            unit.end_quietly(handle)
        rows = [checksum([member.own]) for member in self.rows]
        own = rows if self._computes_with_rows() else [
            checksum([_rows.own_rows(member.working, self.root.mesh)]) for member in self.rows]
        self.published = dict(zip(self.rows, zip(rows, *self.runtime.all_gather(own))))

    def unpublish(self, changed=()):
        """Before a change of rows, those of the DTensors `changed`. Collective if each rank could read whole
        parameters."""
        if self.published is not None:
            self.published = None
            storages = {_rows.memory_of(each._local_tensor) for each in changed}
            names = [member.names[0] for member in self.rows if _rows.memory_of(member.own) in storages]
            self._meet(f"changed {', '.join(map(repr, names)) or 'parameters'}, which all ranks change alike")

    def read_whole(self, members, copy=torch.clone):
        """Copies of whole values, by parameter, made by `copy`. Empty if rows of one of the members have changed since
        publish_whole on any rank: only a collective can gather them then."""
        found = {}
        is_one = self.published is not None and self._computes_with_rows()  # the rows are a part of the whole
        for member in members if self.published is not None else ():
            if member.handle is None:
                found[member.sharded] = member.working.detach().clone()
                continue
            if not member.sharded.dim():  # each rank has it
                found[member.sharded] = member.sharded._local_tensor.detach().to(member.working.dtype, copy=True)
                continue
            rows, *every = self.published[member]
            whole = copy(member.working.detach())
            if member.sharded._local_tensor is not member.own or not is_one and rows != checksum([member.own]) \
                    or every != [checksum([_rows.own_rows(whole, self.root.mesh, rank)]) for rank in range(len(every))]:
                return {}
            found[member.sharded] = whole
        return found

    def _computes_with_rows(self):
        """True if whole parameters contain the rows that the program changes: no published copy can differ."""
        return all(member.own.data_ptr() == _rows.own_rows(member.working, self.root.mesh).data_ptr()
                   for member in self.rows)

    def leave_forward(self, forward):
        super().leave_forward(forward)
        for unit in self.units:
            if unit.awaited:
                unit.awaited = set()
                unit.reshard()
        if forward.use is None and forward.quiet:
            # The program may now change rows that other ranks read.
            self._meet("run a forward without gradients, which all ranks run equally often", self._compare_uses)
        elif forward.use is not None:
            self.unfenced = True

    def fence(self):
        """Before the program changes rows: no rank uses them any more."""
        for unit in self.units:
            unit.reshard()
        self.await_ranks()

    def await_ranks(self):
        if self.unfenced:
            self.unfenced = False
            self._meet("used rows of parameters after a forward, as all ranks do")

    def _compare_uses(self, values=()):
        """All ranks' `values`. Raises on all ranks if they used units without gradients in different orders, where a
        use gathers: those of units of one size cannot be told apart, and ranks compute with the weights of others.
        Collective."""
        uses, self.quiet_uses = self.quiet_uses, []
        order = zlib.crc32(bytes(str(uses), "ascii"))
        every = self.runtime.all_gather([order, len(uses), self.gathers(), *values])
        if len({each[0] for each in every}) > 1 and any(each[2] for each in every):
            longest = int(max(each[1] for each in every))
            places = zip(*self.runtime.all_gather([*uses, *[-1] * (longest - len(uses))]))
            found = next(place for place in places if len(set(place)) > 1)
            names = [f"rank {rank} that of '{self.units[int(number)].label}'" if number >= 0 else f"rank {rank} none"
                     for rank, number in enumerate(found)]
            raise InvalidArgumentError(
                f"the ranks used the units of {self.module._get_name()} in different orders in forwards without "
                f"gradients: {', '.join(names[:8])}; all ranks must run the same forwards")
        return [each[3:] for each in every]

    def _meet(self, why, wait=None):
        """Waits for the ranks that read each other's rows. why: what this rank has done, for a message."""
        if self.is_divided:
            _watch_waits()
            _waits.append(_Wait(f"rank {self.runtime.rank} waits for other ranks: in {self.module._get_name()} it has "
                                f"{why}"))
            try:
                (wait or self.runtime.barrier)()
            finally:
                _waits.pop()

    def enter_backward(self, use):
        if self.backwards is None:
            if self.is_changed:
                self._meet("changed parameters between a forward and its backward, as all ranks do")
                self.is_changed = False
            self._note_changes()
            for unit in self.units:
                unit.reshard()
                unit.hold_gradients(unit.state.holds_gradients())
        super().enter_backward(use)

    def leave_backward(self):
        super().leave_backward()
        if self.open_forwards:  # torch.autograd.grad in a forward
            return
        if all(unit.held for unit in self.units):
            self.runtime.barrier()
        else:
            self._take_gradients()
        self.unfenced = False

    def _take_gradients(self):
        """A parameter gets a gradient if a backward of any rank has reached it; other ranks count as zero."""
        trained = [member for member in (*self.rows, *self.without_elements) if member.trains]
        reached = self._reached_by_any_rank(trained)
        used = {member.unit for member, wanted in zip(trained, reached) if wanted}
        memory = Lifetime(self.runtime)
        given, scalars = [], []

        def gets(member, wanted):
            return wanted or (member.working.requires_grad and (member.unit.state.reduces_unused or (
                member.unit.state.has_one_gradient and member.unit in used)))

        def take(shards, count, _):
            for member, shard, wanted in zip(trained, shards[:count], reached):
                if member.unit.held:
                    continue
                if shard.gradient is not None and gets(member, wanted):
                    is_own = shard.gives_gradient == 1
                    gradient = view(shard.gradient, member.own.shape, torch.float32, self.device,
                                    memory if is_own else None)
                    if isinstance(member, ScalarMember):
                        scalars.append((member, float(gradient) if gradient.numel() else 0.0))
                    elif is_own:
                        given.append((member, gradient))
                    else:
                        member.give_gradient(gradient, False)
                member.has_gradient = False

        with torch.no_grad():
            kept = self.library.make("model_take_gradients", self.handle, callback(ShardsFunction, take),
                                     self.library.callback_context)
            release(memory, self.library.gradients_free, kept)
            for member, wanted in zip(trained, reached):
                if member.handle is None and not member.unit.held:
                    if gets(member, wanted):
                        given.append((member, torch.empty_like(member.own)))
                    member.has_gradient = False
            if scalars:
                firsts = self.runtime.all_gather([value for _, value in scalars])[0]
                given += [(member, torch.tensor(value, dtype=torch.float32, device=self.device))
                          for (member, _), value in zip(scalars, firsts)]
            for member, gradient in given:
                member.give_gradient(gradient, True)
        self.has_gradients = False

    def drop_held(self):
        """Drops the gradients of backwards without reduction. All ranks call it at the same place."""
        for unit in self.units:
            unit.hold_gradients(False)
        self.zero_grad()
        for member in (*self.rows, *self.without_elements):
            member.has_gradient = False

    def _reached_by_any_rank(self, trained):
        own = [0.0] * ((len(trained) + 49) // 50)  # 50 bits in each double
        for number, member in enumerate(trained):
            if member.has_gradient:
                own[number // 50] += 2.0 ** (number % 50)
        every = self._compare_uses(own)
        if all(each == own for each in every):
            return [member.has_gradient for member in trained]
        return [any(int(each[number // 50]) >> (number % 50) & 1 for each in every)
                for number in range(len(trained))]


# ---- waits ---------------------------------------------------------------------------------------

_PATIENCE = 30.0  # seconds: a rank that has waited for one to two times as long says why
_waits = []  # of this rank, the innermost last


class _Wait:
    __slots__ = ("text", "looks")

    def __init__(self, text):
        self.text, self.looks = text, 0


@functools.cache
def _watch_waits():
    """Starts the thread that says for what this rank waits: other ranks may never come, and then the runtime's error
    comes after ACC_COLLECTIVE_TIMEOUT only."""
    def watch():
        while True:
            time.sleep(_PATIENCE)
            for wait in tuple(_waits):
                wait.looks += 1
                if wait.looks == 2:
                    say(wait.text)

    threading.Thread(target=watch, name="acc-waits", daemon=True).start()


# ---- the first forward ---------------------------------------------------------------------------

_runtimes = {}  # by the settings of the program
_sharded = weakref.WeakSet()  # modules
_numbers = itertools.count()  # of models, in the order of their first forwards, the same on all ranks


def _runtime(fields):
    key = tuple(sorted(fields.items()))
    if key not in _runtimes:
        _runtimes[key] = Runtime(fields)
    return _runtimes[key]


def _same(states, what, value_of):
    """The value that all states have in common. Raises NotSupportedError with two that differ."""
    (first, root), *others = states
    for name, state in others:
        if value_of(state) != value_of(root):
            raise NotSupportedError(f"fully_shard of '{name}' and of '{first or 'the root'}' differ in {what} "
                                    f"({value_of(state)} and {value_of(root)}), which the engine acc does not "
                                    "support in one model")
    return value_of(root)


def _number_of(dtype):
    """The runtime's number of a dtype. It never looks into values that it neither converts nor sums."""
    return DTYPES.index(dtype) if dtype in _TRAINED else _BYTES[dtype.itemsize]


def _dtypes_of(parameter, policy, name):
    """The dtypes of a parameter's rows, of its use, and of its gradients when they are sent."""
    stored = computed = parameter.dtype
    if policy.param_dtype is not None and stored.is_floating_point:
        computed = policy.param_dtype
    reduced = policy.reduce_dtype or computed if computed in _TRAINED else computed
    used = {stored, computed, reduced} if stored is not computed or parameter.requires_grad else set()
    for dtype in used:
        if dtype not in _TRAINED:
            raise NotSupportedError(f"fully_shard: parameter '{name}' in {stored}, computed in {computed} and reduced "
                                    f"in {reduced}: the engine acc converts and trains float32, bfloat16 and float16")
    return stored, computed, reduced


def _fields_of(states):
    """The settings of the runtime that the arguments of fully_shard choose."""
    mesh = _same(states, "mesh", lambda state: state.mesh)
    inner = [state.reshard_after_forward for _, state in states[1:]] or [states[0][1].reshard_after_forward]
    reshards = inner[0] if inner.count(inner[0]) == len(inner) else True
    if not states[0][1].has_one_gradient:
        fields = {"fsdp_version": "2", "reshard_after_forward": str(reshards).lower()}
    elif mesh.ndim == 1:
        fields = {"fsdp_version": "1", "sharding_strategy": "FULL_SHARD" if reshards else "SHARD_GRAD_OP"}
    elif mesh.size(1) == 1:
        fields = {"fsdp_version": "1", "sharding_strategy": "NO_SHARD"}
    else:
        fields = {"fsdp_version": "1", "sharding_strategy": "HYBRID_SHARD" if reshards else "HYBRID_SHARD_ZERO2"}
    if mesh.ndim == 2 and fields.get("sharding_strategy") != "NO_SHARD":
        fields.update(dp_replicate_size=str(mesh.size(0)), dp_shard_size=str(mesh.size(1)))
    computed = {state.precision.param_dtype for _, state in states}
    fields["mixed_precision"] = _WORDS.get(computed.pop(), "no") if len(computed) == 1 else "no"  # in messages
    return fields | _same(states, "settings", lambda state: state.settings)


def _give_slots(module, states):
    """Gives each parameter to the innermost state that contains all its places. A tied one may have places in several
    states, and may have been tied after fully_shard."""
    for state in states:
        state.slots = []
    found = owned_parameters(module, lambda _, part: state_of(part),
                             lambda parameter, around: any(parameter in each.ignored for each in around))
    for parameter, (names, slots, state) in found.items():
        if not isinstance(parameter, DTensor):
            raise put_in_later(names[0])
        _check_kind(parameter._local_tensor, names[0])
        state.slots.append(slots)


@torch.inference_mode(False)  # parameters made in inference mode could not be trained
def _bind(module):
    """Declares the tree of `module`, whose forward begins and which is the root therefore, to the runtime."""
    by_state = {}
    for name, each in module.named_modules():
        if state_of(each) is not None:
            by_state.setdefault(state_of(each), []).append(clean_tensor_name(name))
    states = [("+".join(names), state) for state, names in by_state.items()]
    for name, state in states:
        if state.unit is not None:
            raise InvalidArgumentError(f"the first forward of {type(module).__name__} comes after one of its "
                                       f"part '{name}', which was the root then: call the whole module first")
    if len(states[0][1].modules) > 1:
        raise RuntimeError(f"FSDP requires a single root module but got {states[0][1].modules}")
    _give_slots(module, by_state)
    model = RowModel(module, _runtime(_fields_of(states)))
    model.declare(states)
    _rows.models[model.number] = model
    if model.runtime.rank == 0:
        say(f"engine acc, {model.runtime.describe()}, {len(states)} units")


def _root_of(module):
    """The outermost sharded module that contains `module`."""
    holders = [each for each in _sharded if any(part is module for part in each.modules())]
    return max(holders, key=lambda each: sum(1 for _ in each.modules()))


def unit_of(module):
    """The unit of a sharded module, also before its first forward."""
    state = state_of(module)
    if state.unit is None:
        _bind(_root_of(module))
    return state.unit


def held_gradient(parameter):
    """The sum of this rank's gradients that no backward has reduced yet, of a parameter: whole, the runtime's memory
    until the next backward. None if there is none. Raises NotSupportedError if the sum is kept elsewhere, as that of
    gradients in 16 bits."""
    member = _rows.member_of(parameter)
    if member is None or not member.unit.held or not member.has_gradient:
        return None
    if member.written.dtype is not torch.float32:
        raise NotSupportedError(f"the gradient of parameter '{member.names[0]}' before it is reduced: the engine acc "
                                f"gives it only of modules that compute in float32, not in {member.written.dtype}")
    return member.written


def was_used():
    """True if a module of this process has had its first forward."""
    return bool(_runtimes)


def forget():
    """Drops all models of this process, whose groups have lost a rank, and frees their memory: hooks of autograd would
    keep them."""
    for model in list(_rows.models.values()):
        with contextlib.suppress(Exception):
            model.give_up()
        for each in [*(member for unit in model.units for member in unit.members), *model.units, model]:
            vars(each).clear()
        model.backwards = None  # which the end of a backward asks for
    _rows.models.clear()
    _rows._meshes.clear()
    _runtimes.clear()


def publish_again(parameters):
    """After a change of them on all ranks: lets ranks read whole values that they could read before. Collective."""
    for number in sorted(set(_rows.models).intersection(getattr(each, "_acc_model", None) for each in parameters)):
        if _rows.models[number].published is not None:
            _rows.models[number].publish_whole()


def reshard(module, *_):
    """Before anything that takes the parameters for rows."""
    state = state_of(module)
    if state is not None and state.unit is not None:
        state.unit.reshard()


def before_load(module, *_):
    state = state_of(module)
    if state is not None and state.unit is not None:
        state.unit.model.fence()
        state.unit.model.unpublish()


_dtensor.serve()
_local.serve()


# ---- fully_shard -------------------------------------------------------------------------------------


def _managed(modules, ignored):
    """Distinct parameters of the modules, without parts that an earlier call has sharded, and their places."""
    seen = {}

    def visit(part):
        if part not in seen and state_of(part) is None:
            seen[part] = None
            # Read by transformers, whose ranks then skip no layers and generate in step, and by torch.compile.
            part._is_fsdp_managed_module = part._fsdp_use_orig_params = True
            for each in part.children():
                visit(each)

    for module in modules:
        visit(module)
    return places_in(seen, ignored)


def _shape_of_rows(sharded):
    """The shape of this rank's part of a parameter in the runtime, for which a scalar is a row of the first rank."""
    if sharded.dim():
        return sharded._local_tensor.shape
    mesh = sharded.device_mesh
    return torch.Size([int(mesh.get_local_rank(mesh.ndim - 1) == 0)])


def counts_here(sharded):
    """False for values that are those of the first rank too, in sums over the ranks of a shard group."""
    return sharded.dim() > 0 or _shape_of_rows(sharded).numel() > 0


def _check_kind(tensor, name):
    if is_traceable_wrapper_subclass(tensor) or hasattr(tensor, "fsdp_pre_all_gather"):
        raise NotSupportedError(f"parameter '{name}' is a {type(tensor).__name__} with functions of its own for "
                                "gathering or computing (such as a quantised weight), which the engine acc does not "
                                "support: it gathers plain tensors, of any dtype")


def _rows_of(parameter, name, mesh):
    """A parameter that is a DTensor over this rank's rows."""
    placements = _rows.placements_of(mesh) if parameter.dim() else (Replicate(),) * mesh.ndim
    if isinstance(parameter, DTensor) and (parameter.device_mesh, parameter.placements) == (mesh, placements):
        return parameter  # of another unit as well
    if isinstance(parameter, DTensor):
        raise NotSupportedError(f"fully_shard: parameter '{name}' is a DTensor already (tensor parallelism), which "
                                "the engine acc does not support")
    _check_kind(parameter, name)
    if not parameter.is_contiguous():
        raise NotImplementedError(f"FSDP does not support non-contiguous parameters yet: {name}, shape="
                                  f"{tuple(parameter.shape)}, stride={parameter.stride()}")
    local = _rows.own_rows(parameter.as_subclass(torch.Tensor), mesh).clone()
    if not local.is_meta:
        local = local.to(mesh.device_type)
    made = torch.nn.Parameter(DTensor.from_local(local, mesh, placements, run_check=False, shape=parameter.shape,
                                                 stride=parameter.stride()), parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(parameter, hooks):  # the same dictionary, from which a handle can remove them
            setattr(made, hooks, getattr(parameter, hooks))
    made._acc_model = -1  # none yet: see _rows.awaits_memory
    parameter._acc_successor = made, name
    _bitsandbytes.follow(parameter, made)
    if parameter.requires_grad and not parameter._backward_hooks:
        parameter.register_hook(functools.partial(_refuse_original, name))
    return made


def _refuse_original(name, _):
    raise NotSupportedError(f"parameter '{name}' of before the module was sharded is used in a forward, and is not "
                            "trained any more: read the module's attribute in each forward, not one from before")


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None,
                mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy(), ignored_params=None,
                dp_mesh_dims=None):
    """torch.distributed.fsdp.fully_shard on the runtime. Raises NotSupportedError, with its name, for what the
    engine does not serve."""
    if mesh is None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group()
        mesh = _rows.mesh_of((torch.distributed.get_world_size(),))
    for given, what in ((shard_placement_fn is not None, "shard_placement_fn"),
                        (dp_mesh_dims is not None, "dp_mesh_dims"),
                        (mesh.ndim > 2, f"a mesh of {mesh.ndim} dimensions"),
                        (mesh.size() != torch.distributed.get_world_size(),
                         f"a mesh of {mesh.size()} of {torch.distributed.get_world_size()} ranks"),
                        (mesh.mesh.flatten().tolist() != sorted(mesh.mesh.flatten().tolist()),
                         f"a mesh with the ranks in the order {mesh.mesh.tolist()}"),
                        (isinstance(offload_policy, CPUOffloadPolicy) and mesh.device_type != "cpu",
                         "CPUOffloadPolicy on a GPU")):
        if given:
            raise NotSupportedError(f"fully_shard: the engine acc does not support {what}")
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    for each in modules:
        if isinstance(each, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            raise ValueError(f"fully_shard does not support containers that do not implement forward: {each}")
        if state_of(each) is not None:
            raise AssertionError("fully_shard has already been applied to this module")
    refuse_scalars(modules, ignored_params, "fully_shard")
    make_sharded(modules, mesh, True if reshard_after_forward is None else reshard_after_forward, mp_policy,
                 ignored_params)
    return module


def refuse_scalars(modules, ignored, caller):
    """As torch does."""
    for parameter, ((_, attribute), *_) in _managed(modules, frozenset(ignored or ())).items():
        if parameter.dim() == 0:
            raise ValueError(f"{caller} doesn't support scalar parameters. Change {attribute} to a 1D tensor with "
                             "numel equal to 1.")


def make_sharded(modules, *arguments):
    """`shard`, after which the modules are ShardedModules."""
    shard(modules, *arguments)
    for each in modules:
        cls = type(each)
        each.__class__ = type(f"FSDP{cls.__name__}", (ShardedModule, cls), {"__deepcopy__": Uncopied.__reduce_ex__})


def shard(modules, mesh, reshard_after_forward, precision, ignored):
    """Makes the parameters of the modules DTensors, and one unit of them. Returns its _State."""
    names = {parameter: clean_tensor_name(name) for each in modules for name, parameter in each.named_parameters()}
    ignored = frozenset(ignored or ())
    for parameter, places in _managed(modules, ignored).items():
        successor, _ = _rows.successor_of(parameter)
        put(places, _rows_of(parameter, names[parameter], mesh) if successor is None else successor)
    state = _State(modules, mesh, reshard_after_forward, precision, ignored)
    for each in modules:
        object.__setattr__(each, "_acc_state", state)
        _sharded.add(each)
        each.register_forward_pre_hook(state.before_forward, prepend=True, with_kwargs=True)
        each.register_forward_hook(state.after_forward, with_kwargs=True, always_call=True)
        each.register_load_state_dict_pre_hook(before_load)
        each.register_state_dict_pre_hook(reshard)
    return state


def register_fsdp_forward_method(module, method_name):
    """torch.distributed.fsdp.register_fsdp_forward_method: gathers the parameters in this method too."""
    state = state_of(module)
    if state is None:
        return
    method = getattr(module, method_name)

    @functools.wraps(method)
    def wrapped(*arguments, **keywords):
        arguments, keywords = state.before_forward(module, arguments, keywords) or (arguments, keywords)
        try:
            output = method(*arguments, **keywords)
        except BaseException:
            state.after_forward(module, arguments, keywords, None)
            raise
        changed = state.after_forward(module, arguments, keywords, output)
        return output if changed is None else changed

    setattr(module, method_name, wrapped)


class PartOfRoot:
    """Hooks for a part of a root module that is in no other unit: a call outside of the root's forward, such as that
    of an encoder by generate(), is a forward of the root's unit."""

    def __init__(self, root, part):
        self.root, self.opened = root, []
        self.handles = [
            part.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True),
            part.register_forward_hook(self.after_forward, with_kwargs=True, always_call=True)]

    def remove(self):
        for each in self.handles:
            each.remove()

    @outside_graphs
    def before_forward(self, module, arguments, keywords):
        unit = None if state_of(self.root).summoned else unit_of(self.root)
        self.opened.append(unit is not None and not unit.forwards and not unit.backwards)
        return unit.state.before_forward(module, arguments, keywords) if self.opened[-1] else None

    @outside_graphs
    def after_forward(self, module, arguments, keywords, output):
        if self.opened.pop():
            return state_of(self.root).after_forward(module, arguments, keywords, output)
        return None


class ShardedModule(FSDPModule):
    """A module that fully_shard has sharded. Methods of torch's class that are not here are refused."""

    _orig_cls_mro_index = 3

    def __new__(cls, *arguments, **keywords):
        original = cls.__mro__[cls._orig_cls_mro_index]
        return original.__new__(original, *arguments, **keywords)

    def _get_name(self):
        """The name of the program's class: Trainer looks there whether a model shifts labels."""
        return type(self).__mro__[self._orig_cls_mro_index].__name__

    def unshard(self, async_op=False):
        unit_of(self).unshard()
        return UnshardHandle() if async_op else None

    def reshard(self):
        state = state_of(self)
        if state.unit is not None and state.unit.whole is not None:
            state.unit.reshard()
            state.unit.model.await_ranks()

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        self._set("requires_gradient_sync", requires_gradient_sync, recurse)

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        self._set("requires_all_reduce", requires_all_reduce, recurse)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """After the first forward only for what `unshard` has gathered."""
        self._set("reshard_after_forward", reshard_after_forward, recurse)

    def set_gradient_divide_factor(self, factor):
        self._set("divide_factor", factor, False)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_reduce_scatter_unused_params(self, enabled, *, recurse=True):
        self._set("reduces_unused", enabled, recurse)

    def _set(self, attribute, value, recurse):
        for each in self.modules() if recurse else (self,):
            if state_of(each) is not None:
                setattr(state_of(each), attribute, value)

    def _get_fsdp_state(self):
        raise NotSupportedError("the engine acc has no FSDPState of torch")

    def _apply(self, *arguments, **keywords):
        reshard(self)
        return super(FSDPModule, self)._apply(*arguments, **keywords)


# The runtime gathers and frees in the order that it has seen, and each backward waits for its reductions.
_WITHOUT_EFFECT = {
    "set_is_last_backward", "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch",
    "set_reshard_after_backward", "set_unshard_in_backward", "set_post_optim_event",
    "set_force_sum_reduction_for_comms", "set_allocate_memory_from_process_group_for_comm", "set_symm_mem_for_comm",
    "set_separate_reduce_scatter_group", "set_reduce_scatter_max_input_buffers", "_set_unshard_async_op"}


def _ignore(self, *_, **__):
    """Without effect."""


def _refuse(name):
    def refused(self, *_, **__):
        raise NotSupportedError(f"FSDPModule.{name}: the engine acc does not support it")
    return refused


for _name in dir(FSDPModule):
    if not _name.startswith("__") and callable(getattr(FSDPModule, _name)) and _name not in vars(ShardedModule) \
            and not hasattr(torch.nn.Module, _name):
        setattr(ShardedModule, _name, _ignore if _name in _WITHOUT_EFFECT else _refuse(_name))

