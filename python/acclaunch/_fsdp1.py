# SPDX-License-Identifier: Apache-2.0
"""The interface of FSDP 1 (torch.distributed.fsdp.FullyShardedDataParallel) on the runtime, for `--engine acc`.

A wrapper is a unit of _fsdp2: its parameters are DTensors over this rank's rows, with their own names and shapes,
whatever use_orig_params says. Of torch's class this one inherits what only reads attributes of wrappers; what touches
flat parameters is here. State dicts have torch's contents, so that files travel in both directions."""

import contextlib
import copy
import functools
import itertools
import os
import types

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import (BackwardPrefetch, CPUOffload, FullOptimStateDictConfig,
                                    FullStateDictConfig, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy,
                                    StateDictType)
from torch.distributed.fsdp import FullyShardedDataParallel as TorchClass
from torch.distributed.fsdp._common_utils import (FSDP_PREFIX, TrainingState, _set_fsdp_flattened, clean_tensor_name)
from torch.distributed.fsdp._init_utils import (_init_ignored_module_states, _materialize_meta_module,
                                                _materialize_with_param_init_fn, _need_to_materialize_module)
from torch.distributed.fsdp._wrap_utils import _auto_wrap
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only

from acclaunch import _dtensor, _fsdp2, _rows
from acclaunch._imports import optimizers
from acclaunch._library import InvalidArgumentError, NotSupportedError
from acclaunch._parameters import Uncopied
from acclaunch._sharding import _refuse_gradient
from acclaunch._units import places_in

_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
_KEPT_AFTER_FORWARD = (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2, ShardingStrategy.NO_SHARD)

# ---- meshes --------------------------------------------------------------------------------------

def _choose_mesh(strategy, process_group, device_mesh):
    """The mesh of all ranks that a strategy and the arguments of a wrapper mean."""
    if process_group is not None and device_mesh is not None:
        raise ValueError("Cannot pass both process_group and device_mesh at the same time. Please just pass only one "
                         "of them.")
    world = dist.get_world_size()
    if strategy in _HYBRID:
        if device_mesh is not None:
            if device_mesh.ndim != 2:
                raise ValueError(f"Expected device_mesh to have ndim=2 but got {device_mesh.ndim}")
            return device_mesh
        if process_group is None:
            inner = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        elif isinstance(process_group, tuple) and len(process_group) == 2:
            inner = _size_of_rows(*process_group)
        else:
            raise ValueError("Expected process_group to be passed in as either None or Tuple[dist.ProcessGroup, "
                             f"dist.ProcessGroup] but got {type(process_group)}")
        if world % inner:
            raise NotSupportedError(f"{strategy}: {world} ranks, of which {inner} shard together")
        return _rows.mesh_of((world // inner, inner))
    groups = [process_group] if process_group is not None else []
    if device_mesh is not None:
        groups += [device_mesh.get_group(dim) for dim in range(device_mesh.ndim)]
    for group in groups:
        if dist.get_world_size(group) != world:
            raise NotSupportedError(f"FullyShardedDataParallel: the engine acc does not support {strategy} over "
                                    f"{dist.get_world_size(group)} of {world} ranks")
    if strategy is ShardingStrategy.NO_SHARD:
        return _rows.mesh_of((world, 1))
    return device_mesh if device_mesh is not None else _rows.mesh_of((world,))


def _size_of_rows(inner, outer):
    """The size of the group that shards, if the ranks that shard together follow each other."""
    rank, size = dist.get_rank(), dist.get_world_size(inner)
    first = rank - rank % size
    if dist.get_process_group_ranks(inner) != list(range(first, first + size)) or \
            dist.get_process_group_ranks(outer) != list(range(rank % size, dist.get_world_size(), size)):
        raise NotSupportedError("FullyShardedDataParallel: the engine acc needs process groups in which the ranks that "
                                "shard together follow each other")
    return size


class _Flat:
    """Stands for the flat parameter of torch's wrapper, for code that looks at its dtype and changes it
    (Accelerate)."""

    def __init__(self, wrapper):
        self._parameters = [parts[0][0]._parameters[parts[0][1]] for parts in wrapper._places().values()]
        self._fqns = [clean_tensor_name(name) for name, _ in wrapper._fsdp_wrapped_module.named_parameters()]
        trained = [each for each in self._parameters if each.requires_grad]
        self.requires_grad = bool(trained)
        self.dtype, self.device = (trained or self._parameters)[0].dtype, self._parameters[0].device

    @property
    def data(self):
        return self

    def to(self, dtype):
        return dtype

    @data.setter
    def data(self, dtype):
        for each in self._parameters:
            if each.is_floating_point():
                each.data = each.detach().to(dtype)


# ---- the class -----------------------------------------------------------------------------------


class FullyShardedDataParallel(TorchClass):
    __doc__ = TorchClass.__doc__
    __module__ = TorchClass.__module__

    def __init__(self, module, process_group=None, sharding_strategy=None, cpu_offload=None, auto_wrap_policy=None,
                 backward_prefetch=BackwardPrefetch.BACKWARD_PRE, mixed_precision=None, ignored_modules=None,
                 param_init_fn=None, device_id=None, sync_module_states=False, forward_prefetch=False,
                 limit_all_gathers=True, use_orig_params=False, ignored_states=None, device_mesh=None):
        torch.nn.Module.__init__(self)
        self._fsdp_wrapped_module = module
        self._device_mesh, self._fully_sharded_module_to_handle = None, {}
        self.training_state, self._state_dict_type = TrainingState.IDLE, StateDictType.FULL_STATE_DICT
        if not dist.is_initialized():
            dist.init_process_group()
        self.sharding_strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        self.mixed_precision = mixed_precision or MixedPrecision()
        self.cpu_offload = cpu_offload or CPUOffload()
        self.backward_prefetch, self.forward_prefetch = backward_prefetch, forward_prefetch
        self.limit_all_gathers, self._use_orig_params = limit_all_gathers, use_orig_params
        self._state_dict_config, self._optim_state_dict_config = FullStateDictConfig(), FullOptimStateDictConfig()
        self._check_precision()
        _init_ignored_module_states(self, module, ignored_modules, ignored_states)
        mesh = _choose_mesh(self.sharding_strategy, process_group, device_mesh)
        self.process_group = mesh.get_group(mesh.ndim - 1)
        self.rank, self.world_size = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        self.compute_device = torch.device(mesh.device_type, torch.cuda.current_device()
                                           if mesh.device_type == "cuda" else None)
        if auto_wrap_policy is not None:
            _auto_wrap(module, auto_wrap_policy, self._ignored_modules, self._ignored_params, {
                "process_group": process_group, "sharding_strategy": sharding_strategy, "cpu_offload": cpu_offload,
                "backward_prefetch": backward_prefetch, "mixed_precision": mixed_precision,
                "param_init_fn": param_init_fn, "device_id": device_id, "sync_module_states": sync_module_states,
                "forward_prefetch": forward_prefetch, "limit_all_gathers": limit_all_gathers,
                "use_orig_params": use_orig_params, "ignored_states": self._ignored_params,
                "device_mesh": device_mesh}, FullyShardedDataParallel)
        self._materialize(param_init_fn)
        if sync_module_states:
            self._take_states_of_rank_0()
        self._shard(mesh)
        self._is_root = True
        self._hooks_of_parts = [_fsdp2.PartOfRoot(self, part) for part in self._parts()
                                if part not in self._ignored_modules]
        for each in self.fsdp_modules(module):
            each._is_root = False
            for hooks in each._hooks_of_parts:
                hooks.remove()
        self.register_state_dict_post_hook(FullyShardedDataParallel._after_state_dict)
        self.register_load_state_dict_pre_hook(FullyShardedDataParallel._before_load_state_dict)
        self.register_load_state_dict_post_hook(FullyShardedDataParallel._after_load_state_dict)

    def _check_precision(self):
        precision = self.mixed_precision
        low = precision.param_dtype is not None or precision.reduce_dtype is not None
        if low and precision.keep_low_precision_grads:
            raise NotSupportedError("MixedPrecision(keep_low_precision_grads=True): the engine acc does not support it")
        if low and os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1":
            raise NotSupportedError("FSDP_USE_FULL_PREC_IN_EVAL=1: the engine acc does not support it")

    def _materialize(self, initialize):
        wrapped = self._fsdp_wrapped_module
        is_meta, is_deferred = _need_to_materialize_module(wrapped, self._ignored_params, self._ignored_modules)
        if is_deferred:
            raise NotSupportedError("FullyShardedDataParallel of a module of torchdistX")
        if is_meta and initialize is not None:
            _materialize_with_param_init_fn(wrapped, initialize, self._ignored_modules)
        elif is_meta:
            _materialize_meta_module(wrapped, self.compute_device, self._ignored_modules, None)
        if self.compute_device.type != "cpu":
            kept = {each for module in self._ignored_modules for each in module.buffers()}
            for part in self._fsdp_wrapped_module.modules():
                for name, buffer in part._buffers.items():
                    if buffer is not None and buffer not in kept:
                        part._buffers[name] = buffer.to(self.compute_device)

    def _take_states_of_rank_0(self):
        """Parameters that no wrapper has yet, and buffers."""
        for part in self._parts():
            kept = part in self._ignored_modules
            for each in itertools.chain(part._parameters.values(), part._buffers.values()):
                if each is not None and not kept and each not in self._ignored_params \
                        and not isinstance(each, _rows.Replaced):
                    values = each.detach().to(self.compute_device).contiguous()
                    dist.broadcast(values, 0)
                    each.detach().copy_(values)

    def _shard(self, mesh):
        precision = self.mixed_precision
        policy = MixedPrecisionPolicy(param_dtype=precision.param_dtype, reduce_dtype=precision.reduce_dtype,
                                      cast_forward_inputs=precision.cast_forward_inputs)
        if self.cpu_offload.offload_params and mesh.device_type != "cpu":
            raise NotSupportedError("CPUOffload(offload_params=True) on a GPU: the engine acc does not support it")
        _fsdp2.refuse_scalars([self], self._ignored_params, "FSDP")
        before = {place: place[0]._parameters[place[1]] for places in self._places().values() for place in places}
        for each in before.values():
            if not isinstance(each, (DTensor, _rows.Replaced)):  # which a wrapper inside has made
                each.data = each.data.contiguous()  # torch keeps layouts such as channels_last
        state = _fsdp2.shard([self], mesh, self.sharding_strategy not in _KEPT_AFTER_FORWARD, policy,
                             self._ignored_params)
        state.has_one_gradient = True
        state.root_casts_inputs = precision.cast_forward_inputs or precision.cast_root_forward_inputs
        successors = {}
        for (part, attribute), old in before.items():
            new = part._parameters[attribute]
            if new is not old:
                _set_fsdp_flattened(new)
                successors[old] = new
        _dtensor.whole_outside(successors.values())
        for optimizer in list(optimizers):
            _rows.exchange(optimizer, successors)
        _rows.replace(successors)
        kept = {each for module in self._ignored_modules for each in module.buffers()}
        self._buffer_dtypes = {
            clean_tensor_name(name): each.dtype for name, each in self._fsdp_wrapped_module.named_buffers()
            if each.is_floating_point() and each not in kept}
        self._buffers_are_cast = precision.buffer_dtype is None

    # ---- places

    def _parts(self):
        """The modules of this wrapper that are in no inner wrapper."""
        seen, waiting = {self}, [self._fsdp_wrapped_module]
        while waiting:
            part = waiting.pop()
            if part not in seen and not isinstance(part, FullyShardedDataParallel):
                seen.add(part)
                yield part
                waiting += reversed(list(part.children()))

    def _places(self):
        """By each parameter of this wrapper: the places (module, attribute) that hold it."""
        return places_in(self._parts(), self._ignored_params)

    def _names(self):
        """By each parameter of this wrapper: its names in the wrapped module's state dict."""
        prefixes = {}
        for name, part in self._fsdp_wrapped_module.named_modules(remove_duplicate=False):
            prefixes.setdefault(part, []).append(name)
        return {parameter: [clean_tensor_name(f"{prefix}.{attribute}" if prefix else attribute)
                            for part, attribute in places for prefix in prefixes[part]]
                for parameter, places in self._places().items()}

    # ---- forward

    def forward(self, *arguments, **keywords):
        if not self._buffers_are_cast:
            self._cast_buffers()
        if self.compute_device.type != "cpu":
            arguments, keywords = tree_map_only(torch.Tensor, lambda each: each.to(self.compute_device),
                                                (arguments, keywords))
        return self._fsdp_wrapped_module(*arguments, **keywords)

    def _cast_buffers(self):
        """Those in no inner wrapper, which may have another precision, as one of a BatchNorm has."""
        self._buffers_are_cast = True
        names, own = self._buffer_dtypes, set(self._parts())
        for prefix, part in self._fsdp_wrapped_module.named_modules():
            for attribute, buffer in part._buffers.items() if part in own else ():
                if buffer is not None and clean_tensor_name(f"{prefix}.{attribute}" if prefix else attribute) in names:
                    part._buffers[attribute] = buffer.to(self.mixed_precision.buffer_dtype)

    @contextlib.contextmanager
    def no_sync(self):
        if not self._is_root:
            raise RuntimeError("`no_sync()` on inner FSDP instances is not supported. Please call `no_sync()` on root "
                               "FSDP module.")
        states = [_fsdp2.state_of(each) for each in self.fsdp_modules(self)]
        before = [state.requires_gradient_sync for state in states]
        for state in states:
            state.requires_gradient_sync = False
        try:
            yield
        finally:
            for state, value in zip(states, before):
                state.requires_gradient_sync = value

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        if not self._is_root:
            raise RuntimeError("`clip_grad_norm_()` should only be called on the root FSDP instance")
        norm_type = float(norm_type)
        grads = [each.grad for each in self.parameters() if each.grad is not None]
        sharded = [each._local_tensor for each in grads if isinstance(each, DTensor)]
        others = [each for each in grads if not isinstance(each, DTensor)]

        def norm_of(tensors):
            norms = [torch.linalg.vector_norm(each, norm_type, dtype=torch.float32) for each in tensors if each.numel()]
            return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else \
                torch.zeros((), device=self.compute_device)

        own = _rows.norm_over_ranks(norm_of(sharded), norm_type, _fsdp2.state_of(self).mesh)
        total = torch.linalg.vector_norm(torch.stack([own, norm_of(others).to(own)]), norm_type).float()
        factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
        for each in sharded + others:
            each.mul_(factor.to(each.device, each.dtype))
        dtypes = {each.dtype for each in grads}
        return total.to(dtypes.pop()) if len(dtypes) == 1 else total

    # ---- whole parameters

    @staticmethod
    @contextlib.contextmanager
    def summon_full_params(module, recurse=True, writeback=True, rank0_only=False, offload_to_cpu=False,
                           with_grads=False):
        if writeback and rank0_only:
            raise NotImplementedError("writeback=True and rank0_only=True is not supported yet")
        if recurse:
            wrappers = FullyShardedDataParallel.fsdp_modules(module)
        else:
            wrappers = [module] if isinstance(module, FullyShardedDataParallel) else []
            if wrappers and FullyShardedDataParallel.fsdp_modules(module) != wrappers:
                _fsdp2.unit_of(module)  # Wrappers in it may run before it does, and are not the root.
        with _summoned(wrappers, writeback, rank0_only, offload_to_cpu, with_grads):
            yield

    def apply(self, function):
        with _summoned([self], writeback=True):
            return torch.nn.Module.apply(self, function)

    def _apply(self, *arguments, **keywords):
        return torch.nn.Module._apply(self, *arguments, **keywords)

    # ---- state dicts of the module

    @staticmethod
    def set_state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        if state_dict_type is StateDictType.LOCAL_STATE_DICT:
            raise NotSupportedError("StateDictType.LOCAL_STATE_DICT: the engine acc has no flat parameters; use "
                                    "SHARDED_STATE_DICT")
        return TorchClass.set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)

    def _after_state_dict(self, state, prefix, _):
        for key in [key for key in state if key.startswith(prefix + FSDP_PREFIX)]:
            state[prefix + key[len(prefix + FSDP_PREFIX):]] = state.pop(key)
        full = self._state_dict_type is StateDictType.FULL_STATE_DICT
        config = self._state_dict_config
        dropped = full and config.rank0_only and dist.get_rank() != 0
        for parameter, names in self._names().items():
            keys = [prefix + name for name in names if prefix + name in state]
            if not keys:
                continue
            value = _rows.copy_of(parameter) if full and isinstance(parameter, DTensor) else state[keys[0]].clone()
            for key in keys:
                if dropped:
                    del state[key]
                else:
                    state[key] = value.cpu() if config.offload_to_cpu else value
        for name, dtype in self._buffer_dtypes.items():
            if prefix + name in state and self.mixed_precision.buffer_dtype is not None:
                state[prefix + name] = state[prefix + name].to(dtype)
        if dropped:
            ignored = self._ignored_buffer_names
            for name, _ in self._fsdp_wrapped_module.named_buffers():
                if clean_tensor_name(name) not in ignored:
                    state.pop(prefix + clean_tensor_name(name), None)

    def _before_load_state_dict(self, state, prefix, *_):
        for parameter, names in self._names().items():
            for key in (prefix + name for name in names):
                if key in state:
                    state[key] = _rows.distributed(_without_shards(key, state[key], parameter), parameter)
        for key in [key for key in state if key.startswith(prefix)]:
            state[prefix + FSDP_PREFIX + key[len(prefix):]] = state.pop(key)

    def _after_load_state_dict(self, incompatible):
        for keys in incompatible:
            keys[:] = map(clean_tensor_name, keys)

    # ---- state dicts of an optimizer

    @staticmethod
    def _optim_state_dict_impl(model, optim, optim_state_dict, optim_input=None, rank0_only=True, full_state_dict=True,
                               group=None, cpu_offload=True, *, _stacklevel=1):
        """By the names of parameters, what an optimizer's state dict has by their numbers."""
        names, order = _names_in(model), _order_of(model, optim, optim_input)
        dropped = full_state_dict and rank0_only and dist.get_rank(group) != 0
        state = {}
        for key in sorted(optim_state_dict["state"], key=lambda key: (isinstance(key, str), key)):
            name = names[order[key]] if isinstance(key, int) else key
            for what, value in optim_state_dict["state"][key].items():
                if isinstance(value, torch.Tensor):
                    is_whole = full_state_dict and isinstance(value, DTensor)
                    value = _rows.copy_of(value) if is_whole else value.clone()
                    value = value.cpu() if cpu_offload else value
                state.setdefault(name, {})[what] = value
        if dropped:
            return {}
        made = {key: value for key, value in optim_state_dict.items() if key not in ("state", "param_groups")}
        made["state"] = state
        if "param_groups" in optim_state_dict:
            made["param_groups"] = [{**copy.deepcopy(group), "params": [
                names[order[key]] if isinstance(key, int) else key for key in group["params"]]}
                for group in optim_state_dict["param_groups"]]
        return made

    @staticmethod
    def _optim_state_dict_to_load_impl(optim_state_dict, model, optim_input=None, optim=None, full_state_dict=True,
                                       rank0_only=False, is_named_optimizer=False, group=None):
        """The opposite of _optim_state_dict_impl."""
        if rank0_only:
            optim_state_dict = _from_rank_0(optim_state_dict, model)
        order = _order_of(model, optim, optim_input)
        parameters = {name: parameter for parameter, name in _names_in(model).items()}
        numbers = {parameter: number for number, parameter in enumerate(order)}

        def key_of(name):
            parameter = parameters.get(name)
            if parameter not in numbers:
                raise ValueError(f"the state dict of the optimizer has '{name}', no parameter of this optimizer")
            return name if is_named_optimizer else numbers[parameter]

        def value_of(name, value, parameter):
            value = _without_shards(name, value, parameter)
            if not isinstance(value, torch.Tensor):
                return value
            if not isinstance(parameter, DTensor) or value.dim() == 0:
                return value.clone()  # files of torch share the step of all parameters of a wrapper
            if isinstance(value, DTensor):
                return value if value.placements == parameter.placements else \
                    _rows.distributed(_rows.whole_of(value), parameter)
            return _rows.distributed(value, parameter)

        made = {key: value for key, value in optim_state_dict.items() if key not in ("state", "param_groups")}
        made["state"] = {key_of(name) if name in parameters else name: {
            what: value_of(name, value, parameters.get(name)) for what, value in values.items()}
            if isinstance(values, dict) else values for name, values in optim_state_dict["state"].items()}
        if "param_groups" in optim_state_dict:
            made["param_groups"] = [{**copy.deepcopy(group), "params": sorted(key_of(name) for name in group["params"])}
                                    for group in optim_state_dict["param_groups"]]
        return made

    # ---- what torch's class has besides

    @property
    def _has_params(self):
        return bool(self._places())

    @property
    def _flat_param(self):
        return _Flat(self)

    @property
    def _handle(self):
        return types.SimpleNamespace()  # takes the attributes that programs set on torch's FlatParamHandle

    def register_comm_hook(self, state, hook):
        raise NotSupportedError("FullyShardedDataParallel.register_comm_hook: the engine acc does not support it")

    def _unshard(self, async_op=False):
        raise NotSupportedError("FullyShardedDataParallel._unshard: the engine acc does not support it")

    __reduce_ex__ = __deepcopy__ = Uncopied.__reduce_ex__


# ---- functions of the methods above --------------------------------------------------------------

_whole = {}  # parameters of modules whose values are whole now, with their _State


@contextlib.contextmanager
def _summoned(wrappers, writeback=False, rank0_only=False, offload_to_cpu=False, with_grads=False):
    wrappers = [each for each in wrappers if not _fsdp2.state_of(each).summoned]
    for each in wrappers:
        unit = _fsdp2.state_of(each).unit
        if unit is not None and (unit.forwards or unit.backwards or unit.model.backwards is not None):
            raise AssertionError("Cannot manually unshard parameters during forward/backward")
    places = {}
    for each in wrappers:
        for parameter, slots in each._places().items():
            if isinstance(parameter, DTensor):
                places.setdefault(parameter, []).extend(slots)
    has_values = not rank0_only or dist.get_rank() == 0
    for sharded, slots in places.items():
        value = _rows.copy_of(sharded)
        gradient = _rows.copy_of(sharded.grad) if with_grads and sharded.grad is not None else None
        if not has_values:
            continue
        whole = torch.nn.Parameter(value.cpu() if offload_to_cpu else value, sharded.requires_grad)
        whole.__dict__.update({key: each for key, each in sharded.__dict__.items() if not key.startswith("_acc")})
        whole.grad = gradient.to(whole.device) if gradient is not None else None
        if whole.requires_grad:
            whole.register_post_accumulate_grad_hook(_refuse_gradient)
        _fsdp2.put(slots, whole)
    states = [_fsdp2.state_of(each) for each in wrappers]
    for wrapper, state in zip(wrappers, states):
        state.summoned, wrapper.training_state = True, TrainingState.SUMMON_FULL_PARAMS
        _whole.update(dict.fromkeys(wrapper._places() if has_values else (), state))
    _whole.update({sharded: states[0] for sharded in places})
    failed = True
    try:
        yield
        failed = False
    finally:
        if writeback and not failed:
            _rows.fence()
        for sharded, ((module, attribute), *_) in places.items():
            whole = module._parameters[attribute]
            _fsdp2.put(places[sharded], sharded)
            _whole.pop(sharded, None)
            _whole.pop(whole, None)
            if has_values and writeback and not failed:
                _rows.set_rows(sharded, whole)
                if with_grads:
                    sharded.grad = _rows.distributed(whole.grad, sharded)
        for wrapper, state in zip(wrappers, states):
            state.summoned, wrapper.training_state = False, TrainingState.IDLE


def _check_step(optimizer, *_):
    if _whole and any(each in _whole for group in optimizer.param_groups for each in group["params"]):
        raise InvalidArgumentError(f"{type(optimizer).__name__}.step() in summon_full_params, whose end would undo it")


register_optimizer_step_pre_hook(_check_step)


def _dropping(zero_grad, parameters_of):
    """zero_grad of a module or an optimizer: drops gradients of backwards in no_sync too, which parameters of torch's
    wrappers have as `grad`, and those of fully_shard have not."""
    @functools.wraps(zero_grad)
    def run(self, *arguments, **keywords):
        zero_grad(self, *arguments, **keywords)
        held = {unit for model in list(_rows.models.values()) for unit in model.units
                if unit.held and unit.state.has_one_gradient}
        given = {each for each in map(_rows.member_of, parameters_of(self) if held else ())
                 if each is not None and each.unit in held}
        for model in sorted({each.unit.model for each in given}, key=lambda model: model.number):
            for unit in held.intersection(model.units):
                for other in unit.members:
                    if other.has_gradient and other not in given:
                        raise NotSupportedError(
                            f"zero_grad() of a part of the parameters after a backward in no_sync, without "
                            f"'{other.names[0]}': the engine acc drops gradients that are not reduced only together")
            model.drop_held()

    return run


torch.nn.Module.zero_grad = _dropping(torch.nn.Module.zero_grad, lambda module: module.parameters())
torch.optim.Optimizer.zero_grad = _dropping(torch.optim.Optimizer.zero_grad, lambda optimizer: itertools.chain(
    *(group["params"] for group in optimizer.param_groups)))


def _without_shards(name, value, parameter):
    """A DTensor in place of a ShardedTensor, which torch's wrappers without a device_mesh give to torch.save. Other
    values as they are."""
    if not isinstance(value, ShardedTensor) or not isinstance(parameter, DTensor):
        return value
    local, parts = _rows.local_of(parameter), [each for each in value.local_shards() if each.tensor.numel()]
    first = _rows.own_elements(parameter)[0] // max(1, local[:1].numel())
    found = [(each.metadata.shard_offsets[0], list(each.tensor.shape)) for each in parts]
    expected = [(first, list(local.shape))] if local.numel() else []
    if value.size() != parameter.shape or found != expected:
        raise InvalidArgumentError(f"'{name}' is a ShardedTensor of shape {list(value.size())}, of which this rank has "
                                   f"{found} (first row, shape), expected {list(parameter.shape)} and {expected}")
    return _rows.of_rows(parts[0].tensor.clone() if parts else torch.empty_like(local), parameter)


def _names_in(model):
    return {parameter: clean_tensor_name(name) for name, parameter in model.named_parameters()}


def _order_of(model, optim, optim_input):
    """The parameters of an optimizer, by their numbers in its state dict."""
    given = optim.param_groups if optim is not None else optim_input if optim_input is not None else model.parameters()
    found = {}
    for each in given:
        found.update(dict.fromkeys(each["params"] if isinstance(each, dict) else [each]))
    return list(found)


def _from_rank_0(state, model):
    """What rank 0 has of an optimizer's state by names, on all ranks. Of tensors of parameters each rank keeps its
    rows."""
    rank, device = dist.get_rank(), FullyShardedDataParallel.fsdp_modules(model)[0].compute_device
    parameters = {name: parameter for parameter, name in _names_in(model).items()}
    tensors = []

    def described(value):
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        tensors.append(value)
        return torch.empty_like(value, device="meta")

    sent = [{**state, "state": tree_map_only(torch.Tensor, described, state["state"])} if rank == 0 else None]
    dist.broadcast_object_list(sent, 0, device=device)
    tensors.reverse()

    def received(value, parameter):
        if not isinstance(value, torch.Tensor) or not value.is_meta:
            return value
        whole = tensors.pop().to(device).contiguous() if rank == 0 else torch.empty_like(value, device=device)
        dist.broadcast(whole, 0)
        return _rows.distributed(whole, parameter)

    made = dict(sent[0])
    made["state"] = {name: tree_map_only(torch.Tensor, lambda value, name=name: received(value, parameters.get(name)),
                                         values) for name, values in made["state"].items()}
    return made
