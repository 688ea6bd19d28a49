# SPDX-License-Identifier: Apache-2.0
"""torch's optimizers and gradient clipping on the local tensors of DTensors with one layout, with the same results:
an operation on a small DTensor takes many times as long as the one on its local tensor."""

import collections
import functools
import inspect
import itertools
import types

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import optimizer as hooks
from torch.utils._pytree import tree_map_only

from acclaunch import _bitsandbytes, _muon, _rows
from acclaunch._library import InvalidArgumentError, NotSupportedError
from acclaunch._parameters import needs_of
from acclaunch._units import as_plain, grad_of

# They treat each element of a parameter by itself.
OPTIMIZERS = tuple(filter(None, (getattr(torch.optim, name, None) for name in (
    "Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"))))
_MUON = (torch.optim.Muon,) if hasattr(torch.optim, "Muon") else ()  # of torch 2.9 and newer


def serve():
    hooks.register_optimizer_step_pre_hook(_before_step)
    for cls in OPTIMIZERS:
        cls.step = _on_locals(cls, cls.step)
    torch.optim.LBFGS.state_dict = _without_mesh(torch.optim.LBFGS.state_dict)
    if _MUON:
        _muon.serve(torch.optim._muon)
    clip = torch.nn.utils.clip_grad
    for name, wrap in (("_get_total_norm", _total_norm), ("_clip_grads_with_norm_", _clip)):
        if hasattr(clip, name):
            setattr(clip, name, wrap(getattr(clip, name)))


# ---- optimizers ----------------------------------------------------------------------------------


def _refuse_other_rules(optimizer):
    """Optimizers that are known to differ, or to fail, on the rows of a parameter."""
    cls, what = type(optimizer), None if _bitsandbytes.serves(optimizer) else needs_of(optimizer)
    if what and any(isinstance(each, DTensor) for group in optimizer.param_groups for each in group["params"]):
        raise NotSupportedError(f"{cls.__module__}.{cls.__name__} on parameters that are divided over ranks: it needs "
                                f"{what}, which the engine acc does not give it (docs/engine.md)")


def _before_step(optimizer, *_):
    _refuse_other_rules(optimizer)
    if type(optimizer) in OPTIMIZERS or isinstance(optimizer, _MUON):
        _rows.distribute_states(optimizer)
    numbers = set()
    kept = optimizer._params if isinstance(optimizer, torch.optim.LBFGS) else ()  # it does not look into its groups
    parameters = [*itertools.chain(*(group["params"] for group in optimizer.param_groups), kept)]
    for parameter in parameters:
        number = getattr(parameter, "_acc_model", None)
        if number is not None:
            numbers.add(number)
        elif isinstance(parameter, DTensor):  # it may have taken the place of a parameter
            numbers.update(_rows.models)
        _, name = _rows.successor_of(parameter)
        if name is not None:
            raise InvalidArgumentError(f"{type(optimizer).__name__}.step(): the optimizer was made before "
                                       f"fully_shard, which has replaced its parameter '{name}': make it "
                                       "afterwards, from the module's parameters()")
    _rows.fence(numbers)
    _rows.before_change(parameters)


def _on_locals(cls, step):
    signature = inspect.signature(step)

    @functools.wraps(step)
    def run(self, *arguments, **keywords):
        given = signature.bind_partial(self, *arguments, **keywords).arguments
        if type(self) is cls and given.get("closure") is None:
            with as_plain():
                _before_step(self)
                if _is_plain(self):
                    with Locals(self):
                        return step(self, *arguments, **keywords)
        return step(self, *arguments, **keywords)

    return run


def has_hooks(optimizer):
    """True if the program has set hooks of the optimizer's steps, or of all optimizers'."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks) or any(
        not hook.__module__.startswith("acclaunch.") for hook in (
            *hooks._global_optimizer_pre_hooks.values(), *hooks._global_optimizer_post_hooks.values()))


def _is_plain(optimizer):
    """False if somebody would see the local tensors, or if other DTensors would have to go with them."""
    if torch.compiler.is_compiling() or has_hooks(optimizer):
        return False
    found = False
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return False
        for parameter in group["params"]:
            if not isinstance(parameter, DTensor):
                continue
            found, gradient = True, grad_of(parameter)
            is_ours = _rows.is_row(parameter) or _rows.awaits_memory(parameter)
            if not is_ours or not _is_alike(gradient, parameter) or not all(
                    _is_alike(value, parameter) for key, value in optimizer.state.get(parameter, {}).items()
                    if key != "step" and isinstance(value, torch.Tensor) and value.dim() > 0):
                return False
    return found


def _is_alike(value, parameter):
    return value is None or (isinstance(value, DTensor) and value._spec.placements == parameter._spec.placements
                             and value._local_tensor.shape == parameter._local_tensor.shape)


def _without_mesh(state_dict):
    """LBFGS keeps sums over all parameters, which each rank has whole: as plain tensors they can be loaded on any
    number of ranks."""
    @functools.wraps(state_dict)
    def run(self):
        return tree_map_only(DTensor, _if_replicated, state_dict(self))
    return run


def _if_replicated(value):
    return value._local_tensor if all(each.is_replicate() for each in value.placements) else value


class Locals:
    """An optimizer that holds local tensors in place of DTensors, for a step. wanted: by groups, the parameters that it
    updates, default all; state: in place of the optimizer's."""

    def __init__(self, optimizer, wanted=None, state=None):
        self.optimizer, self.wanted, self.state = optimizer, wanted, state

    def __enter__(self):
        optimizer = self.optimizer
        self.parameters = [group["params"] for group in optimizer.param_groups]
        self.whole_state, optimizer.state = optimizer.state, collections.defaultdict(dict)
        self.state = self.whole_state if self.state is None else self.state
        self.locals = []
        for group, wanted in zip(optimizer.param_groups, self.wanted or self.parameters):
            group["params"] = [self._local(parameter) for parameter in wanted]

    def _local(self, parameter):
        local = parameter
        if isinstance(parameter, DTensor):
            local = torch.nn.Parameter(parameter._local_tensor, parameter.requires_grad)
            gradient = grad_of(parameter)
            local.grad = None if gradient is None else gradient._local_tensor
        self.locals.append((parameter, local))
        if parameter in self.state:
            self.optimizer.state[local] = {key: _rows.local_of(value) for key, value in self.state[parameter].items()}
        return local

    def __exit__(self, *_):
        optimizer, found = self.optimizer, self.optimizer.state
        optimizer.state = self.whole_state
        for group, parameters in zip(optimizer.param_groups, self.parameters):
            group["params"] = parameters
        for parameter, local in self.locals:
            if local in found:
                kept, made = self.state[parameter], found[local]
                for key in kept.keys() - made.keys():
                    del kept[key]
                for key, value in made.items():
                    if not isinstance(kept.get(key), DTensor) or kept[key]._local_tensor is not value:
                        kept[key] = _whole(key, value, parameter, local)


def _whole(key, value, parameter, local):
    is_row = isinstance(parameter, DTensor) and _rows.is_elementwise(key, value, local)
    return _rows.of_rows(value, parameter) if is_row else value


# ---- clipping ------------------------------------------------------------------------------------


def _mesh_of(tensors):
    """The mesh of a sharded module over whose ranks the rows of all tensors are distributed, or None."""
    if not tensors or not all(isinstance(each, DTensor) for each in tensors):
        return None
    for mesh in {model.root.mesh for model in _rows.models.values()}:
        placements = _rows.placements_of(mesh)
        if all(each._spec.mesh == mesh and each._spec.placements == placements for each in tensors):
            return mesh
    return None


def _total_norm(original):
    @functools.wraps(original)
    def run(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        mesh = _mesh_of(tensors)
        if mesh is None or float(norm_type) <= 0:
            return original(tensors, norm_type, error_if_nonfinite, foreach)
        rows = [each._local_tensor for each in tensors if each._local_tensor.numel()]
        own = original(rows, norm_type, False, foreach)
        total = _rows.norm_over_ranks(own, float(norm_type), mesh).to(own)
        if error_if_nonfinite and not total.isfinite():
            raise RuntimeError(f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
                               "so it cannot be clipped. To disable this error and scale the gradients by the "
                               "non-finite norm anyway, set `error_if_nonfinite=False`")
        return DTensor.from_local(total, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return run


def _clip(original):
    @functools.wraps(original)
    def run(parameters, max_norm, total_norm, foreach=None):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with as_plain():
            gradients = [each for each in map(grad_of, parameters) if each is not None]
        is_total = isinstance(total_norm, DTensor) and all(each.is_replicate() for each in total_norm.placements)
        if not is_total or _mesh_of(gradients) is None:
            return original(parameters, max_norm, total_norm, foreach)
        return original([types.SimpleNamespace(grad=each._local_tensor) for each in gradients], max_norm,
                        total_norm._local_tensor, foreach)
    return run
