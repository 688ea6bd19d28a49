# SPDX-License-Identifier: Apache-2.0
"""The runtime's optimizers."""

import ctypes as c
import math
import typing
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from acclaunch._library import (ConfigError, InvalidArgumentError, LrFunction, LrScheduleConfig, MatrixFunction,
                                NotSupportedError, ParameterGroup, ShardsFunction, StepInfo, by_name, callback, library,
                                real, text)
from acclaunch._parameters import DTYPES, ShardedParameter, needs_of, view
from acclaunch._runtime import from_bytes, model_of, release, to_bytes

__all__ = ["AdamW", "Adam", "NAdam", "Adagrad", "RMSprop", "SGD", "Lion", "Lamb", "Muon", "Adafactor",
           "AdafactorTransformers", "SOAP", "Shampoo", "UpdateRule", "MatrixRule", "Shard", "OwnedMatrix", "Optimizer",
           "Step",
           "TorchOptimizer", "optimizer_from_settings"]

# Names of schedules with values by name (docs/sharding.md, "Schedules").
_NAMED_SCHEDULES = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt",
                    "warmup_stable_decay", "OneCycle", "LRRangeTest")
_SHAPES = {"linear": 0, "cosine": 1, "1-sqrt": 2}
# The others: acc_lr_schedule, and the values that each has.
_SCHEDULES = {"warmup": (3, {"min_lr", "max_lr", "warmup_steps", "linear_warmup"}),
              "warmup_decay": (4, {"min_lr", "max_lr", "warmup_steps", "linear_warmup", "total_steps"}),
              "warmup_cosine": (5, {"warmup_min_ratio", "cos_min_ratio", "warmup_steps", "linear_warmup",
                                    "total_steps"})}
_OF_FUNCTION = 6, set()


class Step(typing.NamedTuple):
    """Result of optimizer.step(). grad_norm: of all gradients, before clipping; lr: of this step;
    skipped: a gradient was not finite, and no parameter was changed."""
    step: int
    grad_norm: float
    clip_coefficient: float
    lr: float
    loss_scale: float
    skipped: bool


def _name_of(parameter):
    return parameter.acc_name if isinstance(parameter, ShardedParameter) else parameter


def _groups(groups):
    """An array of the library's groups from dictionaries with "params" (names, patterns such as
    "head.*", or parameters), and optionally "name", "lr", "weight_decay" and "matrices"."""
    made = (ParameterGroup * len(groups))()
    for number, (group, given) in enumerate(zip(made, groups)):
        unknown = set(given) - {"params", "name", "lr", "weight_decay", "matrices"}
        if unknown:
            raise InvalidArgumentError(f"groups[{number}] has {', '.join(sorted(unknown))}, expected "
                                       "params, name, lr, weight_decay and matrices")
        names = [text(_name_of(each), f"groups[{number}]: a name in params")
                 for each in given["params"]]
        group.__init__(name=text(given.get("name", f"group_{number}"), f"groups[{number}]: name"),
                       parameters=(c.c_char_p * len(names))(*names), num_parameters=len(names),
                       element_wise=not given.get("matrices", True),
                       **{field: _at_least_0(given[field], f"groups[{number}]: {field}")
                          if field in given else -1.0  # that of the optimizer
                          for field in ("lr", "weight_decay")})
    return made, len(groups)


def _at_least_0(value, what):
    """A finite number of at least 0 as a float. Raises InvalidArgumentError with `what` for anything
    else."""
    try:
        found = None if isinstance(value, (str, bytes)) else real(value, what)
    except (TypeError, ValueError):
        found = None
    if found is None or not 0.0 <= found < math.inf:
        raise InvalidArgumentError(f"{what}: expected a finite number of at least 0, got {value!r}")
    return found


# Attributes of torch's optimizers that those here lack -> what to use.
_IN_PLACE_OF = {
    "param_groups": "learning rates are in `lr` and `set_group_lr`, schedules in `set_schedule`; schedulers and "
                    "other code of torch work on `acc.TorchOptimizer(...).torch`",
    "add_param_group": "pass `groups=` when the optimizer is made",
    "defaults": "the settings are the arguments with which it was made",
    "state": "the runtime holds the state; runtime.save and runtime.load contain it",
    "state_dict": "runtime.save contains the optimizer's state",
    "load_state_dict": "runtime.load contains the optimizer's state",
}


class Optimizer:
    """Updates this rank's shards of one module; made by AdamW, SGD or optimizer_from_settings."""

    def __init__(self, module, handle):
        self._library = library()
        self.model, self.handle = model_of(module), handle
        self._schedule = LrFunction()
        release(self, self._library.optimizer_free, handle)

    def __getattr__(self, name):
        instead = _IN_PLACE_OF.get(name)
        raise AttributeError(f"an optimizer of acclaunch has no attribute '{name}'"
                             + (f": {instead}" if instead else ""))

    def step(self):
        """Makes one step: mean of the gradients over ranks and the micro-steps that were made, clipping,
        update. Returns a Step. Collective. Raises InvalidArgumentError, with unit and rank, if a backward
        or a gradient is missing (fully_shard, unused_units), and CollectiveError with the same text on the
        other ranks."""
        self.model.before_step()
        info = StepInfo()
        self._library.optimizer_step(self.handle, info)
        self.model.after_step()
        return Step(info.step, info.grad_norm, info.clip_coefficient, info.lr, info.loss_scale,
                    bool(info.skipped))

    def state_of_rank(self):
        """What checkpoints hold of this rank for the optimizer, in addition to what the runtime saves:
        {name: bytes}."""
        return {}

    def load_state_of_rank(self, state):
        """state: the SavedState of a checkpoint."""

    def zero_grad(self, set_to_none=True):
        """Drops the gradients of all backwards since the last step; a step drops its own. A forward
        before it may still have its backward. All ranks call it at the same place."""
        self.model.zero_grad()

    def scale(self, loss):
        """The loss times the loss scale (1 without fp16), for backward()."""
        factor = self.loss_scale
        return loss if factor == 1.0 else loss * factor

    @property
    def loss_scale(self):
        """Factor by which the loss is multiplied before the backward; 1 without fp16."""
        return self._library.read("optimizer_loss_scale", c.c_double, self.handle)

    @property
    def steps(self):
        """Number of steps made, including those before a loaded checkpoint."""
        return self._library.read("optimizer_steps", c.c_int64, self.handle)

    @property
    def lr(self):
        """Learning rate of the next step, of parameters outside all groups."""
        return self._library.read("optimizer_lr", c.c_double, self.handle)

    @lr.setter
    def lr(self, value):
        self._library.optimizer_set_lr(self.handle, _at_least_0(value, "lr"))

    def group_lr(self, name):
        """Learning rate of the next step, of the group with this name. Raises NotFoundError if there
        is none."""
        return self._library.read("optimizer_group_lr", c.c_double, self.handle,
                                  text(name, "the name of a group"))

    def set_group_lr(self, name, value):
        """Sets the rate of the group with this name and ends its schedule. Raises NotFoundError if there
        is none."""
        self._library.optimizer_set_group_lr(self.handle, text(name, "the name of a group"),
                                             _at_least_0(value, "lr"))

    @property
    def clip_norm(self):
        """Norm to which gradients are clipped; 0: no clipping."""
        return self._library.read("optimizer_clip_norm", c.c_double, self.handle)

    @clip_norm.setter
    def clip_norm(self, value):
        self._library.optimizer_set_clip_norm(self.handle, value)

    @property
    def clip_value(self):
        """Limit to which each element of the mean gradient is clipped; 0: no clipping."""
        return self._library.read("optimizer_clip_value", c.c_double, self.handle)

    @clip_value.setter
    def clip_value(self, value):
        self._library.optimizer_set_clip_value(self.handle, value)

    def set_schedule(self, schedule, **values):
        """Takes the learning rates of later steps from a schedule: a function (steps made, base rate) -> rate,
        or one of the names

        - "constant", "linear", "cosine": those of transformers, after a warm-up of `warmup_steps` (0) from 0;
          linear and cosine end at 0 at `total_steps`, cosine with `cycles` 0.5;
        - "warmup", "warmup_decay", "warmup_cosine": DeepSpeed's, from `min_lr` (0) to `max_lr` (the base rate, that of
          "warmup_decay" 0.001) within `warmup_steps` (1000), with the logarithm of the step unless `linear_warmup`;
          the last two end at `total_steps`; "warmup_cosine" has the ratios `warmup_min_ratio` (0) and `cos_min_ratio`
          (0.0001) instead;
        - "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay" of transformers, "OneCycle" and
          "LRRangeTest" of DeepSpeed, with values of their own (docs/sharding.md, "Schedules").

        Steps count from the first step of the run. A function is called once per step and group. If it raises,
        or returns something else than a finite number of at least 0, step() makes no step and raises, on the
        other ranks too. Raises InvalidArgumentError for another name, for a value that the schedule does not have,
        does not allow, or lacks."""
        function = LrFunction()
        values = {name: value for name, value in values.items() if value is not None}
        if schedule in _NAMED_SCHEDULES:
            self._library.optimizer_set_named_schedule(self.handle, schedule.encode(), *by_name(
                {name: _SHAPES.get(value, value) if name.endswith("_type") else value
                 for name, value in values.items()}))
        else:
            if not callable(schedule) and schedule not in (*_SCHEDULES,):
                raise InvalidArgumentError("schedule must be a function or one of " + ", ".join(
                    (*_NAMED_SCHEDULES, *_SCHEDULES)) + f", got {schedule!r}")
            kind, known = _OF_FUNCTION if callable(schedule) else _SCHEDULES[schedule]
            if values.keys() - known:
                raise InvalidArgumentError(f"the schedule {schedule!r} has no "
                                           + ", ".join(sorted(values.keys() - known)))
            if callable(schedule):
                function = callback(LrFunction, lambda step, base, _: _at_least_0(
                    schedule(step, base), f"the schedule's learning rate after {step} steps"))
            self._library.optimizer_set_schedule(self.handle, LrScheduleConfig(
                kind=kind, function=function, context=self._library.callback_context,
                **{"warmup_steps": -1, "max_lr": -1.0, "cos_min_ratio": 0.0001, **values}))
        self._schedule = function


class Shard(typing.NamedTuple):
    """This rank's part of a trained parameter, from element `offset` on: tensors with one dimension, possibly without
    elements. gradient: the mean over ranks and micro-steps, unscaled and clipped, float32; None if the step leaves the
    parameter as it is. states: float32, by their names. weight_decay: False if the parameter is declared without."""
    name: str
    offset: int
    weight_decay: bool
    weights: torch.Tensor
    gradient: typing.Optional[torch.Tensor]
    states: dict


class OwnedMatrix(typing.NamedTuple):
    """A parameter with two dimensions on the one rank that owns it, in host memory, float32. values: the gradient, as
    in Shard, which the rule replaces by the update: the weights become (1 - lr * weight_decay) * weights - lr *
    values. step: from 1. states: by their names, from 0."""
    name: str
    step: int
    lr: float
    weight_decay: float
    values: torch.Tensor
    states: dict


def _names(states):
    return (c.c_char_p * len(states))(*(text(each, "a name in states") for each in states))


def _shard_of(shard, names, device):
    """A Shard of the library's. names: of the states; device: of the module."""
    device = torch.device("cpu") if shard.in_host_memory else device

    def tensor(address, dtype=torch.float32):
        return view(address, torch.Size((shard.numel,)), dtype, device)

    return Shard(shard.name.decode(), shard.offset, bool(shard.weight_decay),
                 tensor(shard.weights, DTYPES[shard.dtype]), None if shard.gradient is None else tensor(shard.gradient),
                 {name: tensor(shard.states[number]) for number, name in enumerate(names)})


class UpdateRule(Optimizer):
    """An optimizer whose update is a function of the program, element by element: update(shards) changes the weights
    and the states of a list of Shard in place, in each step. states: names of values that the runtime keeps for each
    element, from 0; checkpoints hold them, and are resumed on any number of ranks. Reduction, mean, clipping and loss
    scale are the runtime's; rates are the program's. Must not use the runtime. Collective."""

    def __init__(self, module, update, states=()):
        names, device = list(states), model_of(module).device

        def run(shards, count, _):
            with torch.no_grad():
                update([_shard_of(each, names, device) for each in shards[:count]])

        self._function = callback(ShardsFunction, run)
        super().__init__(module, library().make("optimizer_program_states", model_of(module).handle, self._function,
                                                library().callback_context, _names(names), len(names)))


class TorchOptimizer(UpdateRule):
    """An optimizer whose update is that of an optimizer of torch, for this rank's shards. Reduction, mean,
    clipping and loss scale are the runtime's.

    make: a class such as torch.optim.Adam, or a function, that makes the optimizer from
    [(name, parameter)], this rank's shards: master weights, one dimension, possibly without elements.
    options: passed to it. `torch`: the optimizer that it made, for param_groups and schedulers. Collective.
    Raises NotSupportedError for rules that are known to need more than one element at a time (LBFGS, Muon,
    Adafactor, those of bitsandbytes, ZeroRedundancyOptimizer); others of that kind differ from those without shards."""

    def __init__(self, module, make, **options):
        this = weakref.ref(self)  # without a cycle, the optimizer ends with its last reference
        super().__init__(module, lambda shards: this()._update(shards))
        found = []
        self._library.optimizer_shards(self.handle, callback(ShardsFunction, lambda shards, count, _: found.extend(
            _shard_of(each, (), self.model.device) for each in shards[:count])), self._library.callback_context)
        self._names, self._offsets = [each.name for each in found], [each.offset for each in found]
        self._shards = [torch.nn.Parameter(each.weights) for each in found]
        self.torch = make(list(zip(self._names, self._shards)), **options)
        cls, what = type(self.torch), needs_of(self.torch, ("LBFGS", "Muon", "Adafactor"))
        own = {"Muon": "acc.Muon", "Adafactor": "acc.Adafactor", "AdamW8bit": "acc.AdamW(…, states_8bit=True)",
               "Adam8bit": "acc.AdamW(…, weight_decay=0, states_8bit=True)",
               "Lion8bit": "acc.Lion(…, states_8bit=True)"}
        if what:
            raise NotSupportedError(f"acc.TorchOptimizer: {cls.__module__}.{cls.__name__} needs {what}, and gets "
                                    "the elements of a shard" + (
                                        f": use {own[cls.__name__]}" if cls.__name__ in own else ""))
        self._updates = False
        self.torch.zero_grad = lambda set_to_none=True: this().zero_grad(set_to_none)
        self.torch.register_step_pre_hook(lambda *_: this()._require_update())

    def _require_update(self):
        if not self._updates:
            raise InvalidArgumentError("step() of `torch`, the optimizer in an acc.TorchOptimizer, has no "
                                       "gradients: call step() of the acc.TorchOptimizer")

    def _update(self, shards):
        self._updates = True
        try:
            for parameter, shard in zip(self._shards, shards):
                # None: requires_grad was False in every backward since the last step.
                parameter.grad = None if shard.gradient is None else shard.gradient.to(parameter.dtype)
            self.torch.step()
        finally:
            self._updates = False
            for parameter in self._shards:
                parameter.grad = None  # its memory is reused

    def _settings(self):
        """What the ranks' optimizers must have in common, a line per setting."""
        def said(value):
            if isinstance(value, torch.Tensor):
                value = value.tolist()
            return repr(value).replace("\n", " ").replace("\0", " ")

        lines = [f"the optimizer of torch={type(self.torch).__module__}.{type(self.torch).__qualname__}"]
        for number, group in enumerate(self.torch.param_groups):
            lines += [f"{name} of parameter group {number}={said(value)}"
                      for name, value in group.items()
                      if name not in ("params", "param_names") and isinstance(
                          value, (bool, int, float, str, tuple, list, torch.Tensor, type(None)))]
        return "\n".join(lines)

    def step(self):
        """As Optimizer.step; `lr` of the result is the rate that the step used."""
        self._library.optimizer_set_rule_settings(self.handle, self._settings().encode())
        rate = self.lr
        return super().step()._replace(lr=rate)

    lr = property(lambda self: self.torch.param_groups[0]["lr"], Optimizer.lr.fset,
                  doc="Learning rate of the first group; set it in `torch.param_groups`.")

    _STATE = "acc.torch_optimizer"

    def _layout(self):
        return [[name, offset, shard.numel()] for name, offset, shard in
                zip(self._names, self._offsets, self._shards)]

    def state_of_rank(self):
        """The state of the optimizer of torch, of this rank's shards."""
        return {self._STATE: to_bytes({"shards": self._layout(), "state": self.torch.state_dict()})}

    def load_state_of_rank(self, state):
        """Takes the state from a checkpoint of the same shards. Raises ConfigError for any other."""
        found = state.of_rank(self._STATE)
        if found is None:
            raise ConfigError("the checkpoint has no state of an optimizer of torch for rank "
                              f"{self.model.runtime.rank}: load its weights alone with "
                              "acc.load_weights")
        found = from_bytes(found)
        if found["shards"] != self._layout():
            raise ConfigError("the state of the optimizer of torch was saved for other shards of the "
                              "parameters: resume with the same number of ranks and the same strategy, "
                              "or load the weights alone with acc.load_weights")
        self.torch.load_state_dict(found["state"])


_MATRIX_STATES = {"whole": lambda rows, columns: (rows, columns), "rows": lambda rows, columns: (rows,),
                  "columns": lambda rows, columns: (columns,), "rows_by_rows": lambda rows, columns: (rows, rows),
                  "columns_by_columns": lambda rows, columns: (columns, columns)}


class MatrixRule(Optimizer):
    """An optimizer with a rule of the program for parameters with two dimensions: update(matrix) changes an OwnedMatrix
    in place, in each step, on the rank that owns it. states: names of values of a matrix, with their shapes: "whole",
    "rows", "columns", "rows_by_rows" or "columns_by_columns"; checkpoints hold them, and are resumed on any number of
    ranks. The result is the same in every strategy. The other parameters, and those of groups with "matrices": False,
    have the rule `others` ("adamw", "adam" or "lion") with its `coefficients`, of which lr and weight_decay are the
    matrices' too. Must not use the runtime. Collective. Raises NotSupportedError on a GPU, unless the optimizer is
    offloaded."""

    def __init__(self, module, update, states=None, others="adamw", groups=(), **coefficients):
        states = dict(states or {})
        unknown = {shape for shape in states.values() if shape not in _MATRIX_STATES}
        if unknown:
            raise InvalidArgumentError(f"MatrixRule: unknown shapes {sorted(map(str, unknown))} of states, expected "
                                       f"{', '.join(_MATRIX_STATES)}")

        def run(given, _):
            own, cpu = given[0], torch.device("cpu")
            values = {name: view(own.states[number], torch.Size(_MATRIX_STATES[shape](own.rows, own.columns)),
                                 torch.float32, cpu) for number, (name, shape) in enumerate(states.items())}
            with torch.no_grad():
                update(OwnedMatrix(own.name.decode(), own.step, own.lr, own.weight_decay, view(
                    own.values, torch.Size((own.rows, own.columns)), torch.float32, cpu), values))

        self._function = callback(MatrixFunction, run)
        shapes = [list(_MATRIX_STATES).index(each) for each in states.values()]
        super().__init__(module, library().make(
            "optimizer_matrices", model_of(module).handle, self._function, library().callback_context, _names(states),
            (c.c_int * len(shapes))(*shapes), len(shapes), text(others, "others"),
            *by_name(coefficients), *_groups(groups)))


def _named(module, name, groups, **coefficients):
    """The runtime's optimizer `name` (docs/sharding.md, "Optimizers")."""
    return Optimizer(module, library().make("optimizer_named", model_of(module).handle, name.encode(),
                                            *by_name(coefficients), *_groups(groups)))


def AdamW(module, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, groups=(),
          states_8bit=False, min_8bit_size=4096):
    """AdamW with the rule and defaults of torch.optim.AdamW. groups: parameters with settings of their
    own, `[{"params": ["head.*"], "lr": 1e-4, "weight_decay": 0.0, "name": "head"}]`. states_8bit: the states of
    parameters of at least `min_8bit_size` elements have 8 bits, in blocks of 256, as with bitsandbytes' AdamW8bit and,
    with weight_decay 0, Adam8bit; raises NotSupportedError on a GPU, unless the optimizer is offloaded. Collective.
    Raises InvalidArgumentError if a name matches no parameter or two groups have the same one."""
    return _named(module, "adamw", groups, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps,
                  weight_decay=weight_decay, amsgrad=amsgrad, states_8bit=states_8bit, min_8bit_size=min_8bit_size)


def Adam(module, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, groups=(), states_8bit=False,
         min_8bit_size=4096):
    """Adam with the rule and defaults of torch.optim.Adam, which adds the weight decay to the gradient; groups and
    states in 8 bits as in AdamW. Collective."""
    return _named(module, "adam", groups, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps,
                  weight_decay=weight_decay, amsgrad=amsgrad, states_8bit=states_8bit, min_8bit_size=min_8bit_size)


def NAdam(module, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, momentum_decay=4e-3,
          decoupled_weight_decay=False, groups=()):
    """NAdam with the rule and defaults of torch.optim.NAdam; groups as in AdamW. Collective."""
    return _named(module, "nadam", groups, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay,
                  momentum_decay=momentum_decay, decoupled_weight_decay=decoupled_weight_decay)


def Adagrad(module, lr=1e-2, lr_decay=0.0, weight_decay=0.0, eps=1e-10, groups=()):
    """Adagrad with the rule and defaults of torch.optim.Adagrad, from a sum of 0; groups as in AdamW. Collective."""
    return _named(module, "adagrad", groups, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)


def RMSprop(module, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, groups=()):
    """RMSprop with the rule and defaults of torch.optim.RMSprop; groups as in AdamW. Collective."""
    return _named(module, "rmsprop", groups, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay,
                  momentum=momentum, centered=centered)


def SGD(module, lr=1e-3, momentum=0.0, weight_decay=0.0, nesterov=False, groups=()):
    """SGD with the rule and defaults of torch.optim.SGD; groups as in AdamW. Collective."""
    return _named(module, "sgd", groups, lr=lr, momentum=momentum, weight_decay=weight_decay,
                  nesterov=nesterov)


def Lion(module, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, groups=(), states_8bit=False, min_8bit_size=4096):
    """Lion (arXiv 2302.06675) with the defaults of DeepSpeed; groups and states in 8 bits as in AdamW. Collective."""
    return _named(module, "lion", groups, lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay,
                  states_8bit=states_8bit, min_8bit_size=min_8bit_size)


def Lamb(module, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, bias_correction=True, eps_inside_sqrt=False,
         max_coeff=10.0, min_coeff=0.01, groups=()):
    """LAMB (arXiv 1904.00962) with the rule and defaults of DeepSpeed's FusedLamb, with the norms of whole parameters
    in every strategy; groups as in AdamW. Collective."""
    return _named(module, "lamb", groups, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay,
                  bias_correction=bias_correction, eps_inside_sqrt=eps_inside_sqrt, max_coeff=max_coeff,
                  min_coeff=min_coeff)


def Muon(module, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, eps=1e-7, ns_steps=5, adjust_lr_fn=None,
         betas=(0.9, 0.999), adam_eps=1e-8, adam_lr=None, groups=()):
    """Muon with the rule and defaults of torch.optim.Muon for matrices (parameters with two dimensions), in float32
    where torch rounds to bfloat16, and AdamW for the others, with the same weight decay. adjust_lr_fn: None or
    "original", sqrt(max(1, rows / columns)), or "match_rms_adamw" (arXiv 2502.16982). betas, adam_eps, adam_lr (None:
    lr): of AdamW. Embeddings and the last layer are usually matrices for AdamW: name them in a group with "matrices":
    False. groups: as in AdamW, with the rate of both rules. Collective. Raises NotSupportedError on a GPU, unless the
    optimizer is offloaded."""
    if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
        raise InvalidArgumentError(f"adjust_lr_fn must be None, original or match_rms_adamw, got {adjust_lr_fn!r}")
    ratio = 1.0 if adam_lr is None else _at_least_0(adam_lr, "adam_lr") / _at_least_0(lr, "lr")
    return _named(module, "muon", groups, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                  eps=eps, ns_steps=ns_steps, match_rms_adamw=adjust_lr_fn == "match_rms_adamw", beta1=betas[0],
                  beta2=betas[1], adam_eps=adam_eps, adam_lr_ratio=ratio)


def Adafactor(module, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, groups=()):
    """Adafactor (arXiv 1804.04235) with the rule and defaults of torch.optim.Adafactor, with the means of whole
    parameters in every strategy. One rank of all owns a parameter and its states. A group with "matrices": False does
    not factor its squares; groups otherwise as in AdamW. Collective. Raises NotSupportedError on a GPU, unless the
    optimizer is offloaded."""
    return _named(module, "adafactor", groups, lr=lr, beta2_decay=beta2_decay,
                  eps1=torch.finfo(torch.float32).eps if eps[0] is None else eps[0], eps2=eps[1], d=d,
                  weight_decay=weight_decay)


def AdafactorTransformers(module, lr=None, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, beta1=None,
                          weight_decay=0.0, scale_parameter=True, relative_step=True, warmup_init=False, groups=()):
    """Adafactor with the rule and defaults of transformers' Adafactor; otherwise as Adafactor. With relative_step the
    rate follows from the number of steps, and neither `lr` nor a schedule changes it. Raises InvalidArgumentError for
    an `lr` together with relative_step, as transformers does, and without both."""
    if (lr is not None) == bool(relative_step):
        raise InvalidArgumentError(f"AdafactorTransformers needs either lr or relative_step, got lr={lr} and "
                                   f"relative_step={relative_step}")
    return _named(module, "adafactor_transformers", groups, lr=1e-3 if lr is None else lr, eps1=eps[0], eps2=eps[1],
                  clip_threshold=clip_threshold, decay_rate=decay_rate, beta1=beta1 or 0.0, weight_decay=weight_decay,
                  scale_parameter=scale_parameter, relative_step=relative_step, warmup_init=warmup_init)


def SOAP(module, lr=3e-3, betas=(0.95, 0.95), shampoo_beta=-1.0, eps=1e-8, weight_decay=1e-2, precondition_frequency=10,
         max_precondition_dim=10000, adam_eps=1e-8, adam_lr=None, groups=()):
    """SOAP (arXiv 2409.11321) with the rule and defaults of the authors' soap.py for matrices, whose first step makes
    the basis and changes nothing, and AdamW for the others, with the same betas and weight decay. shampoo_beta: of the
    averages that make the basis; below 0: betas[1]. max_precondition_dim: a longer side has no basis. The rest as in
    Muon. Collective."""
    ratio = 1.0 if adam_lr is None else _at_least_0(adam_lr, "adam_lr") / _at_least_0(lr, "lr")
    return _named(module, "soap", groups, lr=lr, beta1=betas[0], beta2=betas[1],
                  shampoo_beta=betas[1] if shampoo_beta < 0 else shampoo_beta, eps=eps, weight_decay=weight_decay,
                  precondition_frequency=precondition_frequency, max_precondition_dim=max_precondition_dim,
                  adam_eps=adam_eps, adam_lr_ratio=ratio)


def Shampoo(module, lr=1e-1, momentum=0.0, eps=1e-4, weight_decay=0.0, precondition_frequency=1,
            max_precondition_dim=10000, betas=(0.9, 0.999), adam_eps=1e-8, adam_lr=1e-3, groups=()):
    """Shampoo (arXiv 1802.09568, algorithm 1) for matrices, with decoupled weight decay, and AdamW for the others.
    momentum: of the preconditioned gradient, as in SGD. precondition_frequency: steps between two computations of the
    roots. The rest as in SOAP. Collective."""
    return _named(module, "shampoo", groups, lr=lr, momentum=momentum, eps=eps, weight_decay=weight_decay,
                  precondition_frequency=precondition_frequency, max_precondition_dim=max_precondition_dim,
                  beta1=betas[0], beta2=betas[1], adam_eps=adam_eps,
                  adam_lr_ratio=_at_least_0(adam_lr, "adam_lr") / _at_least_0(lr, "lr"))


def optimizer_from_settings(module):
    """The optimizer and the schedule of the launcher's configuration (`optimizer` and `scheduler` of a
    DeepSpeed file). Collective. Raises ConfigError if it chooses none."""
    return Optimizer(module, library().make("optimizer_from_settings", model_of(module).handle))


def _refuse_sharded(optimizer, _, __):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, ShardedParameter):
                raise InvalidArgumentError(
                    f"{type(optimizer).__name__} of torch cannot update the sharded parameter "
                    f"'{parameter.acc_name}', whose gradient the runtime holds: use acc.AdamW or "
                    f"acc.SGD, or acc.TorchOptimizer(module, {type(optimizer).__name__}, …)")


register_optimizer_step_pre_hook(_refuse_sharded)
