# SPDX-License-Identifier: Apache-2.0
"""The interface of FSDP 2 (torch.distributed.fsdp.fully_shard) on the runtime, for `--engine acc`.

Between uses a module's parameters are DTensors over this rank's rows, in the layout of FSDP 2. From the
first forward on, their local tensors are the runtime's memory. A forward of the root publishes the rows,
which anything may have changed since the last one: an optimizer, load_state_dict, a copy_. The end of a
backward gives every parameter that it reached its `grad`, a DTensor over ordinary memory.

`fully_shard` may be called before the root is known. So it only makes the DTensors, and the first forward
declares the units of its module's tree to the runtime (`_bind`)."""

import functools
import sys
import weakref

import torch
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only

from acclaunch._library import (INITIALIZER_CONSTANT, Handle, InvalidArgumentError, NotSupportedError,
                                ParameterConfig, ShardsFunction, callback)
from acclaunch._parameters import DTYPES, Uncopied, view
from acclaunch._runtime import Runtime
from acclaunch._sharding import Model, _inside, _shape
from acclaunch._units import Member, Unit, put

_WORDS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class _State:
    """What fully_shard knows of the modules that it was given together. slots: of each parameter, the places
    (module, attribute) that hold it."""

    def __init__(self, modules, mesh, reshard_after_forward, precision, slots):
        self.modules, self.mesh, self.precision, self.slots = modules, mesh, precision, slots
        self.reshard_after_forward = reshard_after_forward
        self.requires_gradient_sync = True
        self.root_casts_inputs = precision.cast_forward_inputs
        self.units_have_gradients = False  # FSDP 1: zeros where no backward has reached, if one has reached the unit
        self.unit = None
        self.whole = False  # the program has taken the parameters' whole values into the module

    def before_forward(self, module, arguments, keywords):
        if self.whole:
            return None
        if self.unit is None:
            _bind(module)
        return self.unit.before_forward(module, arguments, keywords)

    def after_forward(self, module, arguments, keywords, output):
        if self.unit is None:  # _bind failed
            return None
        output = self.unit.after_forward(module, arguments, keywords, output)
        dtype = self.precision.output_dtype
        if dtype is not None and output is not None:
            output = tree_map_only(torch.Tensor, lambda each: each.to(dtype) if each.is_floating_point()
                                   else each, output)
        return output


def state_of(module):
    return module.__dict__.get("_acc_state")


class RowMember(Member):
    """own: this rank's rows in the runtime's memory."""

    own = None

    def adopt(self):
        """Takes over what stands in the module now: the program may have replaced the parameter, or its
        local tensor (load_state_dict(assign=True), Module.to_empty)."""
        module, attribute = self.slots[0]
        found = module._parameters.get(attribute)
        if found is not self.sharded:
            old = self.sharded
            if not isinstance(found, DTensor) or (found.shape, found.dtype, found.placements) != (
                    old.shape, old.dtype, old.placements):
                raise InvalidArgumentError(
                    f"parameter '{self.names[0]}' was replaced after the first forward by "
                    f"{'no parameter' if found is None else type(found).__name__ + ' ' + str(list(found.shape))}; "
                    f"expected a DTensor {list(old.shape)} {old.dtype} {old.placements}")
            self.sharded = found
            self.put(found)
        local = found._local_tensor
        if local is self.own:
            return
        if local.dtype is not self.own.dtype or local.shape != self.own.shape:
            raise InvalidArgumentError(
                f"parameter '{self.names[0]}' became {local.dtype} {list(local.shape)} on this rank after the "
                f"first forward, and was {self.own.dtype} {list(self.own.shape)}")
        if local.is_meta:
            raise InvalidArgumentError(f"parameter '{self.names[0]}' is on the meta device: call "
                                       "to_empty() of the module and give its parameters values")
        if local.data_ptr() != self.own.data_ptr():
            with torch.no_grad():
                self.own.copy_(local)
        found._local_tensor = self.own

    def give_gradient(self, gradient):
        """Sets or adds `grad` of the parameter. gradient: [numel of own], memory that is reused."""
        parameter = self.sharded
        gradient = gradient.view(self.own.shape)
        if parameter.grad is None:
            made = torch.empty_like(self.own).copy_(gradient)
            parameter.grad = DTensor(made, parameter._spec, requires_grad=False)
        else:
            parameter.grad._local_tensor.add_(gradient)
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)


class RowUnit(Unit):
    def __init__(self, model, state, name, handle):
        super().__init__(model, state.modules[0], name, handle)
        self.state = state
        self.casts_inputs = model.casts_inputs and (
            state.root_casts_inputs if state is model.root else state.precision.cast_forward_inputs)
        self.empty = []  # members without elements, which the runtime does not know

    def place(self):
        super().place()
        for member in self.empty:
            member.put(member.working)

    def remove(self):
        super().remove()
        if not self.forwards and not self.backwards:
            for member in self.empty:
                member.put(member.sharded)


class RowModel(Model):
    """A tree of modules whose parameters are sharded by rows, and updated by the program."""

    def __init__(self, module, runtime, dtype):
        super().__init__(module, runtime, dtype, seed=0, unused_units=True, by_rows=True)
        self.root = state_of(module)
        self.no_sync = None
        self.unfenced = False  # a forward has ended, and other ranks may still be in it

    # ---- declaration

    def declare(self, states):
        """states: (name, state) of all units, the root first."""
        self.names = {each: name for name, each in reversed(list(self.module.named_modules(remove_duplicate=False)))}
        self.members = {}  # by their names in the runtime
        for name, state in states:
            declare = "model_root" if state is self.root else "model_unit"
            handle = self.library.make(declare, self.handle, name.encode(),
                                       "+".join(type(each).__name__ for each in state.modules).encode())
            unit = RowUnit(self, state, name, handle)
            self.units.append(unit)
            for slots in state.slots:
                self._declare_parameter(unit, slots)
        self.trained = []  # members, in the order of the runtime's shards

        def take(shards, count, _):
            for shard in shards[:count]:
                member = self.members[shard.name.decode()]
                member.own = view(shard.weights, member.sharded._local_tensor.shape, DTYPES[shard.dtype],
                                  self.device, self.lifetime)
                if member.trains:
                    self.trained.append(member)

        self.library.model_shards(self.handle, callback(ShardsFunction, take), self.library.callback_context)
        for unit in self.units:
            unit.module_parameters = tuple(parameter for each in unit.state.modules
                                           for parameter in each.parameters())
            unit.prepare()
            unit.state.unit = unit

    def _declare_parameter(self, unit, slots):
        module, attribute = slots[0]
        sharded = module._parameters[attribute]
        name = clean_tensor_name(f"{self.names[module]}.{attribute}" if self.names[module] else attribute)
        working = torch.nn.Parameter(torch.empty(0, dtype=self.compute_dtype, device=self.device),
                                     sharded.requires_grad)
        if sharded.numel() == 0:
            working.data = torch.empty(sharded.shape, dtype=self.compute_dtype, device=self.device)
            unit.empty.append(RowMember([name], slots, sharded, working, None))
            return
        handle = Handle()
        config = ParameterConfig(trainable=sharded.requires_grad, weight_decay=1,
                                 initializer=INITIALIZER_CONSTANT)
        inside = _inside(unit.name, name) if name.startswith(unit.name + ".") else name
        self.library.unit_parameter(unit.handle, inside.encode(), *_shape(sharded),
                                    config, handle)
        unit.members.append(RowMember([name], slots, sharded, working, handle))
        self.members[f"{unit.name}.{inside}" if unit.name else inside] = unit.members[-1]

    # ---- forward and backward

    def check_module(self):
        """Before a forward of the root: makes this rank's rows what all ranks see."""
        self.check_backward()
        for unit in self.units:
            for member in unit.members:
                member.adopt()
        self.library.model_publish(self.handle)

    def leave_forward(self, forward):
        if forward.use is None and forward.quiet:
            self.runtime.barrier()  # the program may now change rows that other ranks read
        elif forward.use is not None:
            self.unfenced = True

    def fence(self):
        """Before the program changes rows: no rank is in a forward any more."""
        if self.unfenced:
            self.unfenced = False
            self.runtime.barrier()

    def enter_backward(self, use):
        if self.backwards is None and not self.root.requires_gradient_sync:
            self.no_sync = self.library.make("no_sync_begin", self.handle)
        super().enter_backward(use)

    def leave_backward(self):
        super().leave_backward()
        if self.no_sync is not None:
            self.library.no_sync_end(self.no_sync)
            self.no_sync = None
            self.runtime.barrier()
        else:
            self._take_gradients()
        self.unfenced = False

    def _take_gradients(self):
        """A parameter gets a gradient if a backward of any rank has reached it; other ranks count as zero."""
        reached = self._reached_by_any_rank()
        by_member = dict(zip(self.trained, reached))
        for unit in self.units:
            if unit.state.units_have_gradients and any(map(by_member.get, unit.trained)):
                for member in unit.trained:
                    if not by_member[member] and member.sharded.requires_grad:
                        member.give_gradient(torch.zeros(member.own.shape, device=self.device))

        def take(shards, count, _):
            for member, shard, wanted in zip(self.trained, shards[:count], reached):
                if wanted and shard.gradient is not None:
                    member.give_gradient(view(shard.gradient, torch.Size((shard.numel,)), torch.float32,
                                              self.device))
                member.has_gradient = False

        with torch.no_grad():
            self.library.model_take_gradients(self.handle, callback(ShardsFunction, take),
                                              self.library.callback_context)
        self.has_gradients = False

    def _reached_by_any_rank(self):
        own = [0.0] * ((len(self.trained) + 49) // 50)  # 50 bits in each double
        for number, member in enumerate(self.trained):
            if member.has_gradient:
                own[number // 50] += 2.0 ** (number % 50)
        every = self.runtime.all_gather(own)
        if all(each == own for each in every):
            return [member.has_gradient for member in self.trained]
        return [any(int(each[number // 50]) >> (number % 50) & 1 for each in every)
                for number in range(len(self.trained))]


# ---- the first forward ---------------------------------------------------------------------------

_runtimes = {}  # by the settings of the program
_replaced = {}  # by the id of a parameter that fully_shard replaced: a weak reference to it, and its name
_models = []  # weak references, in the order of the first forwards, which is the same on all ranks


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


def _dtype_of(states):
    dtypes = {}
    for name, state in states:
        for (module, attribute), *_ in state.slots:
            parameter = module._parameters[attribute]
            if parameter.numel():
                dtypes.setdefault(parameter.dtype, f"{name}.{attribute}")
    for dtype, name in dtypes.items():
        if dtype not in DTYPES[:3] or len(dtypes) > 1:
            raise NotSupportedError(
                "the engine acc needs parameters of one dtype, float32, bfloat16 or float16, in a model; found "
                + ", ".join(f"{dtype} ('{name}')" for dtype, name in dtypes.items()))
    if not dtypes:
        raise InvalidArgumentError("fully_shard: the module has no parameters")
    return next(iter(dtypes))


def _fields_of(states, dtype):
    """The settings of the runtime that the arguments of fully_shard choose."""
    mesh = _same(states, "mesh", lambda state: state.mesh)
    fields = {"fsdp_version": "2"}
    inner = [state.reshard_after_forward for _, state in states[1:]] or [states[0][1].reshard_after_forward]
    fields["reshard_after_forward"] = str(inner[0] if inner.count(inner[0]) == len(inner) else True).lower()
    if mesh.ndim == 2:
        fields.update(dp_replicate_size=str(mesh.size(0)), dp_shard_size=str(mesh.size(1)))
    compute = _same(states, "mp_policy", lambda state: state.precision).param_dtype or dtype
    reduce = states[0][1].precision.reduce_dtype
    for what, each in (("param_dtype", compute), ("reduce_dtype", reduce)):
        if each is not None and each not in _WORDS:
            raise NotSupportedError(f"MixedPrecisionPolicy({what}={each}): the engine acc supports bfloat16, "
                                    "float16 and float32")
    if compute is torch.float32 and dtype is not torch.float32:
        raise NotSupportedError(f"MixedPrecisionPolicy(param_dtype={compute}) with parameters of {dtype}")
    fields["mixed_precision"] = "no" if compute is dtype else _WORDS[compute]
    if reduce is not None:
        fields["reduce_dtype"] = _WORDS[reduce]
    return fields


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
        raise NotSupportedError("the engine acc does not support a root in a list that fully_shard was given")
    dtype = _dtype_of(states)
    model = RowModel(module, _runtime(_fields_of(states, dtype)), dtype)
    model.declare(states)
    _models[:] = [each for each in _models if each() is not None] + [weakref.ref(model)]
    if model.runtime.rank == 0:
        print(f"acclaunch: engine acc, {model.runtime.describe()}, {len(states)} units", file=sys.stderr, flush=True)


def was_used():
    """True if a module of this process has had its first forward."""
    return bool(_runtimes)


def _before_step(optimizer, *_):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = _replaced.get(id(parameter))
            if name is not None and name[0]() is parameter:
                raise InvalidArgumentError(f"{type(optimizer).__name__}.step(): the optimizer was made before "
                                           f"fully_shard, which has replaced its parameter '{name[1]}': make it "
                                           "afterwards, from the module's parameters()")
    fence_all()


def fence_all(*_):
    for reference in _models:
        model = reference()
        if model is not None:
            model.fence()


register_optimizer_step_pre_hook(_before_step)


# ---- fully_shard -------------------------------------------------------------------------------------


def _managed(modules, ignored):
    """Distinct parameters of the modules that no earlier call has sharded, with their places."""
    found = {}
    for module in modules:
        for part in module.modules():
            for attribute, parameter in part._parameters.items():
                if parameter is not None and parameter not in ignored and not hasattr(parameter, "_acc_rows"):
                    places = found.setdefault(parameter, [])
                    if (part, attribute) not in places:
                        places.append((part, attribute))
    return found


def own_rows(tensor, mesh):
    """This rank's rows of a whole tensor, a view."""
    chunks = torch.chunk(tensor, mesh.size(mesh.ndim - 1), dim=0)
    rank = mesh.get_local_rank(mesh.ndim - 1)
    return chunks[rank] if rank < len(chunks) else tensor[:0]


def _rows_of(parameter, name, mesh):
    """A parameter that is a DTensor over this rank's rows."""
    if isinstance(parameter, DTensor):
        raise NotSupportedError(f"fully_shard: parameter '{name}' is a DTensor already (tensor parallelism), which "
                                "the engine acc does not support")
    if parameter.dim() == 0:
        raise ValueError(f"fully_shard does not support scalar parameters. Change {name} to a 1D tensor with "
                         "numel equal to 1.")
    if not parameter.is_contiguous():
        raise NotImplementedError(f"FSDP does not support non-contiguous parameters yet: {name}, shape="
                                  f"{tuple(parameter.shape)}, stride={parameter.stride()}")
    local = own_rows(parameter.detach(), mesh).clone()
    if not local.is_meta:
        local = local.to(mesh.device_type)
    placements = (Shard(0),) if mesh.ndim == 1 else (Replicate(), Shard(0))
    made = torch.nn.Parameter(DTensor.from_local(local, mesh, placements, run_check=False, shape=parameter.shape,
                                                 stride=parameter.stride()), parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    _replaced[id(parameter)] = weakref.ref(parameter), name
    made._acc_rows = True
    return made


def _default_mesh():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return init_device_mesh(device, (torch.distributed.get_world_size(),))


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None,
                mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy(), ignored_params=None,
                dp_mesh_dims=None):
    """torch.distributed.fsdp.fully_shard on the runtime. Raises NotSupportedError, with its name, for what the
    engine does not serve."""
    mesh = mesh if mesh is not None else _default_mesh()
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
    reshard_after_forward = True if reshard_after_forward is None else reshard_after_forward
    shard(modules, mesh, reshard_after_forward, mp_policy, ignored_params or set())
    for each in modules:
        cls = type(each)
        each.__class__ = type(f"FSDP{cls.__name__}", (ShardedModule, cls), {"__deepcopy__": Uncopied.__reduce_ex__})
    return module


def shard(modules, mesh, reshard_after_forward, precision, ignored):
    """Makes the parameters of the modules DTensors, and one unit of them. Returns its _State."""
    names = {parameter: clean_tensor_name(name) for each in modules for name, parameter in each.named_parameters()}
    slots = []
    for parameter, places in _managed(modules, ignored).items():
        sharded = _rows_of(parameter, names[parameter], mesh)
        put(places, sharded)
        slots.append(places)
    state = _State(modules, mesh, reshard_after_forward, precision, slots)
    for each in modules:
        object.__setattr__(each, "_acc_state", state)
        each.register_forward_pre_hook(state.before_forward, prepend=True, with_kwargs=True)
        each.register_forward_hook(state.after_forward, with_kwargs=True, always_call=True)
        each.register_load_state_dict_pre_hook(fence_all)
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


class ShardedModule(FSDPModule):
    """A module that fully_shard has sharded. Methods of torch's class that are not here are refused."""

    _orig_cls_mro_index = 3

    def __new__(cls, *arguments, **keywords):
        original = cls.__mro__[3]
        made = original.__new__(original, *arguments, **keywords)
        return made

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        states = {state_of(each) for each in self.modules()} - {None}
        if not recurse and len(states) > 1:
            raise NotSupportedError("set_requires_gradient_sync(recurse=False): the engine acc reduces the gradients "
                                    "of all parts of a model together")
        for state in states:
            state.requires_gradient_sync = requires_gradient_sync

    def set_is_last_backward(self, is_last_backward):
        """Without effect: each backward waits for its reductions."""

    def set_modules_to_forward_prefetch(self, modules):
        """Without effect: the runtime gathers in the order that it has seen."""

    def set_modules_to_backward_prefetch(self, modules):
        """As set_modules_to_forward_prefetch."""

    def _get_fsdp_state(self):
        raise NotSupportedError("the engine acc has no FSDPState of torch")

    def _apply(self, *arguments, **keywords):
        return super(FSDPModule, self)._apply(*arguments, **keywords)


def _refuse(name):
    def refused(self, *_, **__):
        raise NotSupportedError(f"FSDPModule.{name}: the engine acc does not support it")
    return refused


for _name in dir(FSDPModule):
    if not _name.startswith("__") and callable(getattr(FSDPModule, _name)) and _name not in vars(ShardedModule) \
            and not hasattr(torch.nn.Module, _name):
        setattr(ShardedModule, _name, _refuse(_name))

