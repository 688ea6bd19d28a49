# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's engine on the runtime, for `--engine acc`.

`deepspeed.initialize`, its configuration, data loader, schedules, counters and checkpoint files stay DeepSpeed's own:
the engine here is a DeepSpeedEngine whose module is sharded by `_fsdp2.make_sharded`, and whose optimizer updates this
rank's rows, which are the fp32 master weights. ZeRO 3 frees the gathered parameters after each use, 1 and 2 keep them,
stage 0 shards over one rank."""

import contextlib
import functools
import itertools
import math
import sys
import types
import weakref

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops.adagrad import cpu_adagrad
from deepspeed.ops.adam import cpu_adam, fused_adam
from deepspeed.ops.lamb import fused_lamb
from deepspeed.ops.lion import cpu_lion, fused_lion
from deepspeed.runtime import zero
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.utils import get_z3_leaf_modules
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from acclaunch import _deepspeed_files, _deepspeed_rules, _dtensor, _fsdp2, _local, _nvme, _rejoin, _rows
from acclaunch._deepspeed_rules import DeepSpeedLamb, DeepSpeedLion
from acclaunch._library import InvalidArgumentError, NotSupportedError, refuse, say
from acclaunch._sharding import _candidates
from acclaunch._units import places_in, put

_refuse_other_engines = DeepSpeedEngine.__init__


_refuse = functools.partial(refuse, theirs="DeepSpeed")


def _refusing(what):
    return lambda *_, **__: _refuse(what)


# ---- what the configuration asks for --------------------------------------------------------------

_OPTIMIZERS = ("adam", "adamw", "adagrad", "lamb", "lion", "muon")  # of DeepSpeed; others: classes of torch.optim
_WITH_INT_STEPS = ("adam", "adamw", "lamb", "muon")


def _on(value):
    return bool(value.get("enabled") if isinstance(value, dict) else value)


def _refused_of(config, device):
    """Names of the settings that would change results and are not served."""
    zero_config, given = config.zero_config, config._param_dict
    offload = {"offload_optimizer": zero_config.offload_optimizer, "offload_param": zero_config.offload_param}
    data = config.data_efficiency_config or {}
    yield "pipeline", isinstance(config.pipeline, dict) and config.pipeline.get("stages") not in (None, "auto")
    for name in ("amp", "torch_autocast", "autotuning", "compression_training", "progressive_layer_drop", "eigenvalue",
                 "quantize_training", "curriculum_learning", "hybrid_engine", "expert_parallel"):
        yield name, _on(given.get(name))
    yield "compression_training", bool(given.get("compression_training"))
    yield "data_efficiency", config.data_efficiency_enabled and any(
        _on(data.get(part)) for part in ("data_sampling", "data_routing"))
    yield "compile.deepcompile", getattr(config.compile_config, "deepcompile", False)
    yield "tensor_parallel", getattr(config.tensor_parallel_config, "autotp_size", 0) > 1
    yield "sequence_parallel_size", (given.get("sequence_parallel_size") or 1) > 1
    yield "checkpoint.writer", bool((given.get("checkpoint") or {}).get("writer"))
    for name in ("nebula", "datastates_ckpt"):
        yield name, _on(given.get(name))
    for name in ("fp16_master_weights_and_grads", "bf16_master_weights_and_grads"):
        for part in ("fp16", "bf16", "bfloat16"):
            yield f"{part}.{name}", bool((given.get(part) or {}).get(name))
    section = given.get("zero_optimization") or {}
    for name in ("zero_quantized_nontrainable_weights", "zenflow", "elastic_checkpoint", "parameter_alignment",
                 "legacy_stage1"):
        yield f"zero_optimization.{name}", bool(getattr(zero_config, name, None))
    yield "zero_optimization.mics_shard_size", (section.get("mics_shard_size") or -1) > 0
    for name, part in offload.items():
        where = getattr(part, "device", "none")
        where = str(getattr(where, "value", where))
        is_served = where == "none" or (device == "cpu" and (where == "cpu" or name == "offload_optimizer"))
        yield f"zero_optimization.{name} to {where}", not is_served
    yield "zero_optimization.offload_optimizer.super_offload", getattr(zero_config.offload_optimizer, "super_offload",
                                                                       False)
    name = config.optimizer_name
    yield f"the optimizer {name}", name is not None and name not in _OPTIMIZERS and not isinstance(
        getattr(torch.optim, name, None), type)


# ---- sharding ---------------------------------------------------------------------------------------

_MESH = ("deepspeed",)  # the name of the last dimension of meshes of engines here, and of no other mesh


def _is_served(tensor):
    """True for a DTensor of an engine here: a parameter, or a gradient, state or result of one. The same on all
    ranks."""
    return (tensor._spec.mesh.mesh_dim_names or ())[-1:] == _MESH


def _units_of(module):
    """The outermost candidates for units whose parameters no other part of the module has. Ranks may use different
    parts of a leaf module, which are therefore no units."""
    found, inside = [], set()
    places = {parameter: {part for part, _ in slots} for parameter, slots in places_in(module.modules()).items()}
    for each in get_z3_leaf_modules(module):
        inside.update(part for part in each.modules() if part is not each)
    candidates = _candidates(module)
    for each in module.modules():
        if each not in candidates or each in inside or each is module \
                or isinstance(each, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            continue
        parts = set(each.modules())
        parameters = list(each.parameters())
        if parameters and all(places[parameter] <= parts for parameter in parameters):
            found.append(each)
            inside |= parts
    return found


def _replacements(module, shard):
    """Calls `shard`, and returns what it has put in place of each parameter."""
    places = places_in(module.modules())
    shard()
    return {parameter: part._parameters[attribute] for parameter, ((part, attribute), *_) in places.items()}


# ---- optimizers -------------------------------------------------------------------------------------


def _torch_twin(optimizer):
    """One of torch's optimizers, or ours, in place of one of DeepSpeed's with the same rule. Their groups are the same
    objects, so that a schedule that was made with the first one serves the other."""
    name = type(optimizer).__name__
    decoupled = getattr(optimizer, "adam_w_mode", getattr(optimizer, "adamw_mode", True))
    twins = {"FusedAdam": torch.optim.AdamW if decoupled else torch.optim.Adam, "FusedLion": DeepSpeedLion,
             "DeepSpeedCPUAdagrad": torch.optim.Adagrad, "DeepSpeedCPULion": DeepSpeedLion, "FusedLamb": DeepSpeedLamb}
    twins["DeepSpeedCPUAdam"] = twins["ZenFlowCPUAdam"] = twins["FusedAdam"]
    if not type(optimizer).__module__.startswith("deepspeed."):
        return optimizer
    if name not in twins:
        _refuse(f"the optimizer {name}")
    for group in optimizer.param_groups:
        if name == "FusedLamb":
            if group["max_grad_norm"] > 0:
                _refuse("FusedLamb(max_grad_norm=…)")
            group["eps_inside_sqrt"] = optimizer.eps_mode == 0
        elif group.get("bias_correction") is False:
            _refuse(f"{name}(bias_correction=False)")
    made = twins[name](optimizer.param_groups)
    for group, filled in zip(optimizer.param_groups, made.param_groups):
        for key, value in filled.items():
            group.setdefault(key, value)
    made.param_groups = optimizer.param_groups
    return made


class _CompiledWhenUsed:
    """One of DeepSpeed's extensions in C++, which is compiled when a function of it is called. For optimizers, whose
    twins need none."""

    def __init__(self, builder):
        self._builder, self._created = builder, []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments):
            if name.startswith("create_"):
                self._created.append((name, arguments))
            elif not name.startswith("destroy_"):
                extension = self._builder().load()
                while self._created:
                    create, given = self._created.pop()
                    getattr(extension, create)(*given)
                return getattr(extension, name)(*arguments)

        return call


def serve_optimizers():
    """Optimizers of DeepSpeed are made without a compiler."""
    for module, name in ((cpu_adagrad, "CPUAdagradBuilder"), (cpu_adam, "CPUAdamBuilder"),
                         (cpu_lion, "CPULionBuilder"), (fused_adam, "FusedAdamBuilder"),
                         (fused_lion, "FusedLionBuilder"), (fused_lamb, "FusedLambBuilder")):
        builder = getattr(module, name)
        setattr(module, name, lambda builder=builder: types.SimpleNamespace(load=lambda: _CompiledWhenUsed(builder)))


def _moved(parameter, replaced):
    if parameter in replaced:
        return replaced[parameter]
    if any(new is parameter for new in replaced.values()):
        return parameter
    raise NotSupportedError(f"deepspeed.initialize: the optimizer has a parameter of shape {list(parameter.shape)} "
                            "that is not one of the model's; the engine acc updates only those")


def _zero_grad_of_basic(engine, set_to_none=True):
    """zero_grad of the program's own optimizer. DeepSpeed's copies, which it would reach in stages 1 to 3 and in 16
    bits, have no gradients before the step."""
    if engine.zero_optimization_stage() == 0 and engine.compute_dtype is torch.float32:
        engine.drop_gradients()


class _NoHooks:
    """As DeepSpeedZeRoOffload, whose hooks on modules TRL removes around generate(), and sets again: without any."""

    def __init__(self):
        self.forward_hooks, self.backward_hooks, self.module = [], [], torch.nn.Module()
        self.module.ds_external_parameters = tuple

    def _register_deepspeed_module(self, module):
        """Without effect: the hooks of units stay."""


class RowOptimizer(ZeROOptimizer):
    """The optimizer of an Engine, as DeepSpeed's: unscales, clips, skips steps that overflow, and knows the files."""

    custom_loss_scaler, torch_autocast_gradscaler = False, None

    def __init__(self, engine, optimizer, is_twin):
        super().__init__()
        self.engine, self.optimizer = weakref.proxy(engine), optimizer
        self.is_twin = is_twin  # of one of DeepSpeed's, which counts its steps in an int
        self.stage = int(engine.zero_optimization_stage())
        self.dtype = engine.compute_dtype
        self.clip_grad = engine.gradient_clipping()
        if self.stage > 0:  # it lets DeepSpeed write a file per rank
            self.dp_process_group = engine.seq_data_parallel_group
        if self.stage == 3:
            self.parameter_offload = _NoHooks()
        self.dynamic_loss_scale = engine.fp16_enabled() and engine.dynamic_loss_scale()
        arguments = engine.dynamic_loss_scale_args() or {"init_scale": engine.initial_dynamic_scale()}
        self.loss_scaler = CreateLossScaler(self.dtype, engine.loss_scale(), self.dynamic_loss_scale, arguments)
        is_bf16_optimizer = self.stage == 1 and engine.keeps_sums() and not engine.zero_cpu_offload()  # BF16_Optimizer
        self.gives_norm = getattr(engine._config.zero_config, "compute_grad_norm", True)
        self.skips_overflows = engine.fp16_enabled() or (
            self.stage in (0, 3) or is_bf16_optimizer or engine._config.bfloat16_config.check_grad_overflow
            if engine.bfloat16_enabled() else self.stage > 0 and self.gives_norm)
        if not self.gives_norm and (self.clip_grad > 0 or engine.bfloat16_enabled() and is_bf16_optimizer):
            raise ValueError("zero_optimization.compute_grad_norm=false requires gradient_clipping=0, and stage 1 with "
                             "bf16 gradients that are added in bf16")
        self.overflow = False
        self._global_grad_norm = None
        self.files = self._files()

    def _files(self):
        """The states in a file, with offload to NVMe."""
        config = self.engine._config
        offload = config.zero_config.offload_optimizer
        if offload is None or offload.device != OffloadDeviceEnum.nvme:
            return None
        if type(self.optimizer) not in (*_local.OPTIMIZERS, DeepSpeedLion):
            _refuse(f"zero_optimization.offload_optimizer to nvme with the optimizer {type(self.optimizer).__name__}")
        return _nvme.FileStates(self.optimizer, offload, config.aio_config)

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        self.optimizer.param_groups = groups

    @property
    def state(self):
        return self.optimizer.state

    @property
    def defaults(self):
        return self.optimizer.defaults

    @property
    def loss_scale(self):
        return self.loss_scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, value):
        self.loss_scaler.cur_scale = value

    cur_scale = loss_scale

    @property
    def round_robin_bit16_groups(self):
        """The parameters of each flat tensor of DeepSpeed's files, in their order there."""
        return _deepspeed_files.flat_groups(self)

    def trained(self):
        return [each for group in self.param_groups for each in group["params"] if each.requires_grad]

    def step(self, closure=None):
        _rows.fence()
        self.engine.forget_whole()
        parameters = self.trained()
        for each in parameters:
            if each.grad is None:  # DeepSpeed updates such a parameter with a gradient of zeros
                assert self.stage not in (1, 2) or self.engine.zero_ignore_unused_parameters(), \
                    f"{self.engine.param_names[each]} was not used, and ignore_unused_parameters is false"
                each.grad = torch.zeros_like(each)
        gradients = [each.grad._local_tensor for each in parameters]
        counted = [each.grad._local_tensor for each in self._clipped(parameters) if _fsdp2.counts_here(each)]
        norm = self._norm_of(counted)
        scale = self.loss_scale
        self.overflow = self.skips_overflows and not math.isfinite(norm)
        self.loss_scaler.update_scale(self.overflow)
        if self.overflow:
            self._global_grad_norm = float("inf") if self.gives_norm else None
            return self.engine.drop_gradients()
        if self.stage > 0 and hasattr(self.optimizer, "orthogonalize"):  # DeepSpeed then clips the updates of matrices
            if scale != 1.0:
                torch._foreach_mul_(gradients, 1.0 / scale)
            self.optimizer.orthogonalize()
            norm, scale = self._norm_of(counted), 1.0
        self._global_grad_norm = torch.tensor(norm / scale) if self.gives_norm else None
        if self.clip_grad > 0:
            scale *= max(1.0, (norm / scale + 1e-6) / self.clip_grad)
        if scale != 1.0 and gradients:
            torch._foreach_mul_(gradients, 1.0 / scale)
        self.optimizer.step() if self.files is None else self.files.step()
        self.engine.drop_gradients()

    def _clipped(self, parameters):
        """Those whose norm clips. In stage 0 and float32 DeepSpeed takes that of the module's parameters, also of those
        that the optimizer does not have."""
        if self.stage > 0 or self.dtype is not torch.float32:
            return parameters
        return [each for each in self.engine.module.parameters() if each.grad is not None]

    def _norm_of(self, gradients):
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float64) if gradients else []
        own = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        norm = _rows.norm_over_ranks(own, 2.0, _fsdp2.state_of(self.engine.module).mesh).item()
        return norm if math.isfinite(norm) else math.inf

    def zero_grad(self, set_to_none=True):
        """As DeepSpeed's, which in stage 2 does not reach the gradients of earlier micro-steps."""
        if self.stage != 2:
            self.engine.drop_gradients()

    def refresh_fp32_params(self):
        """Without effect: the module's parameters are the master weights."""

    def finalize_gradient_accumulation_boundary(self):
        """Without effect: each backward adds to the gradients."""

    def get_lr(self):
        return self.param_groups[0]["lr"]

    def set_lr(self, lr):
        for group in self.param_groups:
            group["lr"] = lr

    def state_dict(self):
        """DeepSpeed's: this rank's part, or in stage 0 the whole. Collective."""
        return _deepspeed_files.optimizer_state(self)

    def state_in_memory(self):
        """For snapshots: of this rank's rows. Not collective."""
        return {"optimizer": self.optimizer.state_dict(), "loss_scaler": vars(self.loss_scaler)}

    def load_state_in_memory(self, state):
        groups, states = self.param_groups, self.optimizer.state
        self.optimizer.load_state_dict(state["optimizer"])
        for group, loaded in zip(groups, self.param_groups):
            group.update(loaded)
        self.param_groups = groups  # a schedule of the program may have them, and not the optimizer
        if self.files is not None:
            loaded, self.optimizer.state = self.optimizer.state, states
            for each, own in loaded.items():
                self.set_state(each, own)
        vars(self.loss_scaler).update(state["loss_scaler"])

    def set_state(self, parameter, state):
        if self.files is None:
            self.state[parameter] = state
        else:
            self.files.keep(parameter, state)

    def load_state_dict(self, state_dict, **_):
        _refuse("load_state_dict of the optimizer (engine.load_checkpoint loads it)")

    def destroy(self):
        self.unregister_grad_acc_post_hooks()

    def __repr__(self):
        return f"acclaunch ZeRO {self.stage}: {self.optimizer!r}"


# ---- the engine -------------------------------------------------------------------------------------


class Engine(DeepSpeedEngine):
    """DeepSpeed's engine with the runtime in place of its ZeRO optimizers."""

    replaced = None  # while it is made: by a whole parameter, its rows
    has_successor = False  # another engine has taken over the module

    def __init__(self, args, model, *arguments, config_class=None, **keywords):
        if keywords.get("mpu") is not None or keywords.get("mesh_device") is not None:
            _refuse("deepspeed.initialize with mpu or mesh_param")
        if _rejoin.elastic() is not None:
            _refuse("deepspeed.initialize with --elastic_replicas")
        if _rejoin.membership is not None and _leave_groups is None:
            _refuse(f"deepspeed.initialize with --rejoin and DeepSpeed {deepspeed.__version__}, which cannot leave its "
                    "process groups (0.19.8 can)")
        device = deepspeed.get_accelerator().device_name()
        for what, is_given in _refused_of(config_class, device):
            if is_given:
                _refuse(f"deepspeed.initialize: {what}")
        super().__init__(args, model, *arguments, config_class=config_class, **keywords)
        _rows.replace(whole for whole, rows in self.replaced.items() if whole is not rows)
        self.replaced = None
        _number(self.module.parameters())
        _engines.add(self)
        _fsdp2.unit_of(self.module)  # else a part that is called first would become the root
        self.publish_whole()
        if self.global_rank == 0:
            say(f"engine acc serves DeepSpeed's ZeRO stage {int(self.zero_optimization_stage())}")

    # ---- declaration

    @property
    def compute_dtype(self):
        return torch.float16 if self.fp16_enabled() else torch.bfloat16 if self.bfloat16_enabled() else torch.float32

    def zero_use_cpu_optimizer(self):
        return False

    def _configure_distributed_model(self, model):
        for name, module in model.named_modules():
            if isinstance(module, deepspeed.moe.layer.MoE):
                _refuse(f"the layer MoE of DeepSpeed ('{name}')")
        is_sharded = _fsdp2.state_of(model) is not None
        if is_sharded:
            self._take_over(model)
        for name, parameter in model.named_parameters():
            if isinstance(parameter, _rows.Replaced):
                _refuse(f"deepspeed.initialize of a module whose parameter '{name}' is also of another engine's module")
        super()._configure_distributed_model(model)  # casts, moves to the device, broadcasts
        for name, parameter in model.named_parameters():
            if parameter.dtype.is_floating_point:
                if self.compute_dtype is torch.float32 and parameter.dtype is not torch.float32:
                    raise ValueError(f"fp32 is enabled but parameter '{name}' is {parameter.dtype}: enable fp16 or "
                                     "bf16 in the configuration, or load the model in float32")
                parameter.data = parameter.data.float()
        if is_sharded:
            self.replaced = {each: each for each in model.parameters()}
        else:
            self.replaced = _replacements(model, lambda: self._shard(model))
        if self.zero_optimization_stage() < 3:
            _deepspeed_files.serve_whole_state_dicts(self)
        object.__setattr__(model, "zero_grad", functools.partial(Engine.zero_grad, weakref.proxy(self)))

    def _take_over(self, model):
        """The module of an earlier engine, which cannot train it any more. Its rows stay."""
        kind = self._kind()
        earlier = [each for each in _engines if each.module is model]
        if not earlier or any(each._kind() != kind for each in earlier):
            _refuse("deepspeed.initialize of a module that is sharded already, by fully_shard or in another stage or "
                    "precision")
        self.dont_change_device = True
        _rows.fence()
        for each in earlier:
            if not each.has_successor:
                each.has_successor = True
                each.module_forward_pre_hook.remove()
                each.module_forward_post_hook.remove()
                each.drop_reduced()
                each.forget_whole()

    def _kind(self):
        return (self.zero_optimization_stage(), self.compute_dtype, self._reduced_dtype(),
                self._config.gradient_allreduce_op)

    def _broadcast_model(self):
        """As DeepSpeed's, for scalars too."""
        if _fsdp2.state_of(self.module) is not None:
            return
        for each in self.module.parameters():
            each.data = each.data.contiguous()
            dist.broadcast(each.data.view(-1).view(torch.uint8), 0)

    def _reduced_dtype(self):
        return (self._config.communication_data_type and self.communication_data_type) or torch.float32

    def _shard(self, model):
        stage, ranks = self.zero_optimization_stage(), dist.get_world_size()
        mesh = _rows.mesh_of((ranks,) if stage > 0 else (ranks, 1), self.device.type, _MESH if stage > 0 else
                             ("deepspeed_replicate", *_MESH))
        policy = MixedPrecisionPolicy(
            param_dtype=self.compute_dtype if self.compute_dtype is not torch.float32 else None,
            reduce_dtype=self._reduced_dtype(), cast_forward_inputs=False)
        units = _units_of(model)
        for unit in (*units, model):
            _fsdp2.make_sharded([unit], mesh, stage == 3, policy, None)
            zero = self._config.zero_config
            _fsdp2.state_of(unit).settings = {
                setting: "true" for setting, given in (("quantized_weights", zero.zero_quantized_weights),
                                                       ("quantized_gradients", zero.zero_quantized_gradients)) if given}
            if self._config.gradient_allreduce_op == "sum":
                unit.set_gradient_divide_factor(1)
        _dtensor.whole_outside(model.parameters())
        inside = {part for unit in units for part in unit.modules()}
        for part in model.modules():
            if part is not model and part not in inside:
                _fsdp2.PartOfRoot(model, part)

    def _configure_optimizer(self, client_optimizer, model_parameters):
        parameters = [{**each, "params": [_moved(one, self.replaced) for one in each["params"]]}
                      if isinstance(each, dict) else _moved(each, self.replaced) for each in model_parameters]
        if client_optimizer is None:
            basic = self._configure_basic_optimizer(parameters)
            is_twin = self.optimizer_name() in _WITH_INT_STEPS and not (self.optimizer_params() or {}).get("torch_adam")
        elif isinstance(client_optimizer, torch.optim.Optimizer):
            basic = _torch_twin(client_optimizer)
            is_twin = basic is not client_optimizer
            for group in basic.param_groups:
                for each in group["params"]:
                    _moved(each, self.replaced)
            _rows.exchange(basic, self.replaced)
        else:
            made = client_optimizer(parameters)
            basic = _torch_twin(made)
            is_twin = basic is not made
        basic.param_groups[:] = [group for group in basic.param_groups if group["params"]]
        self._check_for_duplicates(basic)
        basic.zero_grad = functools.partial(_zero_grad_of_basic, weakref.proxy(self))
        self._do_optimizer_sanity_check(basic)
        self.basic_optimizer, self.optimizer = basic, RowOptimizer(self, basic, is_twin)

    def _configure_basic_optimizer(self, model_parameters):
        values = dict(self.optimizer_params() or {})
        made = {"lion": DeepSpeedLion, "lamb": DeepSpeedLamb, "adagrad": torch.optim.Adagrad}.get(self.optimizer_name())
        if made is not None and "max_grad_norm" not in values:  # which DeepSpeed refuses
            values.pop("fp32_optimizer_states", None)  # those of fp32 parameters always are
            return made(model_parameters, **values)
        if self.optimizer_name() == "muon":
            if values.get("per_head_muon"):
                _refuse("the optimizer Muon with per_head_muon")
            for whole, rows in self.replaced.items():
                rows.use_muon = whole.use_muon
            with _deepspeed_rules.muon_in_place():
                return super()._configure_basic_optimizer(model_parameters)
        return super()._configure_basic_optimizer(model_parameters)

    def get_optimizer_configuration(self, optimizer_parameters, adam_w_mode, allow_legacy_fallback=False):
        twin = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
        if optimizer_parameters.pop("bias_correction", True) is False:
            _refuse("the optimizer's bias_correction: false")
        for key in ("set_grad_none", "fp32_optimizer_states"):
            optimizer_parameters.pop(key, None)
        if not optimizer_parameters.pop("torch_adam", False):
            optimizer_parameters.setdefault("weight_decay", 0.0)
        return twin, {}

    def _do_optimizer_sanity_check(self, basic_optimizer):
        """Any optimizer of torch is served."""

    def _configure_zero_optimizer(self, optimizer):
        """Called without an optimizer: to run forwards only."""
        assert self.zero_optimization_stage() == 3, \
            f"zero stage {self.zero_optimization_stage()} requires an optimizer"

    def _configure_bf16_optimizer(self, optimizer):
        """As _configure_zero_optimizer."""

    # ---- forward and backward

    def allreduce_gradients(self, bucket_size=None):
        """Without effect: the backward has reduced them."""

    def _choose_reduction(self):
        self._refuse_after_successor()
        knows_boundary = getattr(self._config, "managed_gradient_accumulation", True)
        self.module.set_requires_gradient_sync(not self.inside_no_sync_ctxt and (
            self.zero_optimization_partition_gradients() or not knows_boundary
            or self.is_gradient_accumulation_boundary()))

    def _forward_prologue(self, inputs, kwargs):
        """As DeepSpeed's. In stage 3 it exchanges the dictionaries of parameters (and fails with a part that
        torch.compile has wrapped), to find uses of parameters outside of their modules. Nothing here needs them."""
        self.zero_optimization_partition_weights = lambda: False
        try:
            return super()._forward_prologue(inputs, kwargs)
        finally:
            del self.zero_optimization_partition_weights

    def _backward_prologue(self):
        self._choose_reduction()
        super()._backward_prologue()

    def backward(self, loss, **keywords):
        self._choose_reduction()
        return super().backward(loss, **keywords)

    def keeps_sums(self):
        """True if DeepSpeed keeps the gradients of earlier micro-steps elsewhere than in `grad` of the parameters: in
        stage 1 if it adds them in another dtype."""
        computed, added = self.get_data_types()
        return self.zero_optimization_stage() > (0 if computed is not added else 1)

    def zero_grad(self, set_to_none=True):
        """Of the module too. As DeepSpeed's, which does not reach gradients that it keeps elsewhere."""
        if not self.keeps_sums():
            self.drop_gradients()

    def drop_gradients(self):
        self.drop_reduced()
        unit = _fsdp2.state_of(self.module).unit
        if unit is not None and unit.model.has_gradients:
            unit.model.drop_held()  # else those of backwards without reduction stay, as with FSDP2

    def drop_reduced(self):
        """Drops the gradients, except those of backwards without reduction."""
        for each in self.module.parameters():
            _write_gradient(each, None)

    @contextlib.contextmanager
    def coalesce_grad_reduction(self):
        """Without effect on results: each backward reduces its gradients."""
        yield

    def clip_fp32_gradients(self):
        """Without effect: the step of the optimizer clips."""

    def _refuse_after_successor(self):
        if self.has_successor:
            _refuse("training with an engine after another deepspeed.initialize of its module")

    def step(self, lr_kwargs=None):
        self._refuse_after_successor()
        super().step(lr_kwargs)
        self.publish_whole()

    def compile(self, *arguments, compiled_autograd_enabled=False, **keywords):
        """As DeepSpeed's: torch.compile of the module."""
        if compiled_autograd_enabled:
            _refuse("DeepSpeedEngine.compile(compiled_autograd_enabled=True)")
        super().compile(*arguments, **keywords)

    # ---- state

    def publish_whole(self):
        """As in DeepSpeed's stages 1 and 2, each rank has whole parameters, from the beginning and after each step.
        Collective."""
        if self.zero_optimization_stage() in (1, 2):
            model = _fsdp2.unit_of(self.module).model
            if model.published is None:
                model.publish_whole()

    def forget_whole(self):
        unit = _fsdp2.state_of(self.module).unit
        if unit is not None:
            unit.model.published = None

    def read_whole(self, copy=torch.clone):
        unit = _fsdp2.state_of(self.module).unit
        return unit.model.read_whole(unit.model.rows, copy) if unit is not None else {}

    def module_state_dict(self, destination=None, prefix="", keep_vars=False, exclude_frozen_parameters=False):
        """Whole tensors in stages 0 to 2, as DeepSpeed, in 16 bits where it computes with them; in stage 3 parameters
        without elements."""
        whole = _deepspeed_files.module_state(self, exclude_frozen_parameters)
        found = destination if destination is not None else {}
        found.update((prefix + name, value) for name, value in whole.items())
        return found

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        if not self.zero_optimization_partition_weights():
            raise ValueError("this function requires ZeRO-3 mode")
        whole = _deepspeed_files.module_state(self, exclude_frozen_parameters, gathers=True)
        return {name: value.cpu() for name, value in whole.items()} if self.global_rank == 0 else None

    def _get_zero_frozen_param_attributes(self, attr_func):
        """Of all parameters that the optimizer's files do not have: also of those that require gradients, and that the
        optimizer does not update."""
        updated = {each for each in self.optimizer.trained() if each.numel()} if self.optimizer is not None else ()
        return {self.param_names[each]: attr_func(each) for each in self.module.parameters() if each not in updated}

    def _get_param_fragment_func(self, param):
        return _deepspeed_files.frozen_fragment(self, param)

    def _get_shared_params(self):
        first, shared = {}, {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            if first.setdefault(parameter, name) != name:
                shared[name] = first[parameter]
        return shared if self.global_rank == 0 else {}

    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True, exclude_frozen_parameters=False):
        with _deepspeed_files.complete_or_absent(self, save_dir, tag, save_latest) as (folder, name):
            super().save_checkpoint(folder, name, client_state, False, exclude_frozen_parameters)
        return True

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True, load_optimizer_states=True,
                        load_lr_scheduler_states=True, load_module_only=False, custom_load_fn=None):
        if custom_load_fn is not None:
            _refuse("load_checkpoint(custom_load_fn=…)")
        return _deepspeed_files.load(self, load_dir, tag, load_module_strict,
                                     load_optimizer_states and not load_module_only,
                                     load_lr_scheduler_states and not load_module_only, load_module_only)

    _COUNTED = ("global_steps", "global_samples", "micro_steps", "skipped_steps", "_global_grad_norm")

    def state_in_memory(self):
        """For snapshots: what this rank has beside the tensors of the module. Raises InvalidArgumentError between the
        micro-steps of a step."""
        unit = _fsdp2.unit_of(self.module)
        if unit.model.has_gradients or any(each.grad is not None for each in self.module.parameters()):
            raise InvalidArgumentError("Snapshots.keep: the engine of DeepSpeed has gradients, which are no part of a "
                                       "snapshot: call keep after the last micro-step of a step, and its step()")
        return {"counted": [getattr(self, name) for name in self._COUNTED],
                "optimizer": None if self.optimizer is None else self.optimizer.state_in_memory(),
                "scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict()}

    def load_state_in_memory(self, state):
        """The tensors of the module are loaded. Collective."""
        for name, value in zip(self._COUNTED, state["counted"]):
            setattr(self, name, value)
        if self.optimizer is not None:
            self.optimizer.load_state_in_memory(state["optimizer"])
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(state["scheduler"])
        self.forget_whole()
        self.publish_whole()


for _name in ("offload_states", "reload_states", "load_module_state_dict", "load_moe_state_dict"):
    setattr(Engine, _name, _refusing(f"DeepSpeedEngine.{_name}"))

_engines = weakref.WeakSet()


def engine_of(parameters):
    """The engine that trains one of these parameters; None if there is none."""
    found = set(parameters)
    return next((each for each in _engines if not each.has_successor
                 and not found.isdisjoint(each.module.parameters())), None)


_leave_groups = getattr(deepspeed.utils.groups, "_release_process_group_references", None)


def leave_groups():
    """Drops DeepSpeed's own references to process groups, which have ended."""
    deepspeed.comm.comm.cdb = None
    if _leave_groups is not None:
        _leave_groups()


# ---- deepspeed.zero ---------------------------------------------------------------------------------


# Parameters that DeepSpeed would have partitioned, by their place in an order that all ranks have.
_numbers = WeakTensorKeyDictionary()
_next_number = itertools.count()


def _number(parameters):
    for each in parameters:
        if each not in _numbers:
            _numbers[each] = next(_next_number)


class Init(contextlib.AbstractContextManager):
    """deepspeed.zero.Init: parameters stay whole until deepspeed.initialize shards them, with rank 0's values."""

    def __init__(self, module=None, *_, enabled=True, **__):
        self.enabled, self.hook = enabled, None
        if not deepspeed.comm.is_initialized():  # also if Accelerate has initialized torch.distributed
            deepspeed.init_distributed()
        if enabled and module is not None:
            _number(module.parameters())

    def __enter__(self):
        if self.enabled:
            self.hook = register_module_parameter_registration_hook(
                lambda module, name, parameter: None if parameter is None else _number([parameter]))
        return self

    def __exit__(self, *_):
        if self.hook is not None:
            self.hook.remove()


class GatheredParameters(contextlib.AbstractContextManager):
    """deepspeed.zero.GatheredParameters, of the parameters of zero.Init and of engines, in an order that is the same on
    all ranks, which that of a set is not. Before deepspeed.initialize they are whole; at the end all ranks get those of
    modifier_rank. Afterwards the modules hold whole copies within, of which the program's own references to
    the parameters are views, and modifier_rank's changes are kept. With all parameters of an engine a forward, such as
    that of generate(), computes with the copies."""

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        given = list(map(_rows.current, [params] if isinstance(params, torch.Tensor) else params))
        self.parameters = sorted({each for each in given if each in _numbers} if enabled else (), key=_numbers.get)
        self.modifier_rank = modifier_rank
        self.whole = {}
        self.rows = {}  # the local tensor and the layout of each parameter
        self.places = {}
        self.states = set()  # of units that compute with the copies

    def __enter__(self):
        sharded = [each for each in self.parameters if isinstance(each, DTensor)]
        if sharded:
            _rows.fence()
        for each in sharded:
            whole = self.whole[each] = torch.nn.Parameter(_rows.copy_of(each), each.requires_grad)
            whole.__dict__.update(each.__dict__)
            self.rows[each] = each._local_tensor, each._spec
            each._local_tensor, each._spec = whole.detach(), type(each._spec)(
                each._spec.mesh, (Replicate(),) * each._spec.mesh.ndim, tensor_meta=each._spec.tensor_meta)
        for engine in _engines if sharded else ():
            modules = list(engine.module.modules())
            for parameter, slots in places_in(modules).items():
                if parameter in self.whole:
                    self.places.setdefault(parameter, []).extend(slots)
            if all(each in self.whole for each in engine.module.parameters()):
                self.states |= set(map(_fsdp2.state_of, modules)) - {None}
        for each, places in self.places.items():
            put(places, self.whole[each])
        for state in self.states:
            state.summoned = True
        return self

    def __exit__(self, kind, *_):
        for state in self.states:
            state.summoned = False
        for each, (local, spec) in self.rows.items():
            each._local_tensor, each._spec = local, spec
        for each, places in self.places.items():
            put(places, each)
        if kind is not None or self.modifier_rank is None or not dist.is_initialized():
            return
        with torch.no_grad():
            for each in self.parameters:
                whole = self.whole.get(each, each)
                dist.broadcast(whole.data, self.modifier_rank)
                if each in self.whole:
                    _rows.set_rows(each, whole)
        _fsdp2.publish_again(self.whole)


def _whole_of(value):
    return _rows.whole_of(value) if isinstance(value, torch.Tensor) else value


def _state_of(parameter):
    return next((engine.optimizer.state[parameter] for engine in _engines
                 if engine.optimizer is not None and parameter in engine.optimizer.state), {})


def _reduced_gradient_of(parameter):
    """Zeros for a parameter that no backward has reached, when others of its optimizer have gradients."""
    engine = engine_of([parameter]) if parameter.grad is None else None
    trained = engine.optimizer.trained() if engine is not None and engine.optimizer is not None else ()
    if parameter in set(trained) and any(each.grad is not None for each in trained):
        parameter.grad = torch.zeros_like(parameter)  # as for the step
    return parameter.grad


def _gradient_of(parameter):
    """As in DeepSpeed's stages 0 and 1, this rank's own sum of gradients until a backward reduces them."""
    own = _fsdp2.held_gradient(parameter) if parameter.grad is None else None
    return _reduced_gradient_of(parameter) if own is None else own


def _master_of(parameter):
    return parameter if parameter.requires_grad else None  # DeepSpeed has none of frozen parameters


def _part_of(value):
    return value._local_tensor.detach().flatten() if isinstance(value, DTensor) else value


def _set_whole(target, value):
    _rows.before_change([target])
    _rows.set_rows(target, value)


def _set_part(target, value):
    with torch.no_grad():
        target._local_tensor.view(-1).copy_(_part_of(value).flatten())


def _safe_functions():
    """The functions of deepspeed.utils for a parameter's values, and for this rank's part of them. Those that are not
    here are refused."""
    def state(param, optim_state_key):
        return _state_of(param).get(optim_state_key)

    def set_state(param, value, key, put_in):
        states = _state_of(param)
        target = states[key]
        put_in(target, value)
        states[key] = target  # it may be a copy of what a file has

    for scope, get, put_in, gradient in (("full", _whole_of, _set_whole, _gradient_of),
                                         ("local", _part_of, _set_part, _reduced_gradient_of)):
        yield f"safe_get_{scope}_fp32_param", lambda param, get=get: get(_master_of(param))
        yield f"safe_get_{scope}_grad", lambda param, get=get, of=gradient: get(of(param))
        yield f"safe_get_{scope}_optimizer_state", lambda param, optim_state_key, get=get: get(
            state(param, optim_state_key))
        yield f"safe_set_{scope}_fp32_param", lambda param, value, put_in=put_in: put_in(param, value)
        yield f"safe_set_{scope}_grad", lambda param, value, put_in=put_in, of=gradient: put_in(of(param), value)
        yield f"safe_set_{scope}_optimizer_state", lambda param, value, optim_state_key, put_in=put_in: set_state(
            param, value, optim_state_key, put_in)


def _of_current(function):
    """A function of a parameter, for one from before deepspeed.initialize too."""
    return lambda param, *arguments, **keywords: function(_rows.current(param), *arguments, **keywords)


_write_gradient = DTensor.grad.fset


def _set_gradient(self, value):
    """`parameter.grad = value`. None, as by zero_grad() of a part of the module, does not reach gradients of earlier
    micro-steps that DeepSpeed keeps elsewhere, and would drop those of this rank where it keeps them here."""
    member = _rows.member_of(self) if value is None and _is_served(self) else None
    if member is not None:
        if any(_fsdp2.unit_of(each.module).model is member.unit.model and each.keeps_sums() for each in _engines):
            return
        if member.unit.held and member.has_gradient:
            _refuse(f"to drop the gradient of parameter '{member.names[0]}' alone before it is reduced (the engine's "
                    "zero_grad() drops all)")
    _write_gradient(self, value)


_write_data = DTensor.data.fset


def _set_data(self, value):
    """`parameter.data = value`. For the program the parameter has the dtype of forwards, and so may the value."""
    _write_data(self, value.to(self.dtype) if _is_served(self) and isinstance(value, torch.Tensor) else value)


_zero_grad = torch.nn.Module.zero_grad


def _zero_grad_of_module(self, set_to_none=True):
    """Of a part of an engine's module, or of one around it."""
    others = []
    for each in self.parameters():
        if isinstance(each, DTensor) and _is_served(each):
            each.grad = None  # also where it is None, before it is reduced
        else:
            others.append(each)
    _zero_grad(types.SimpleNamespace(parameters=lambda: others), set_to_none)


_cpu, _reduce = DTensor.cpu, DTensor.__reduce_ex__


def _whole_cpu(self, *arguments, **keywords):
    """Tensor.cpu, by which programs collect the parameters that they save: whole, as in DeepSpeed. Collective, but for
    parameters, and what detach() and `data` make of them, that each rank can read."""
    if not _is_served(self) or self.requires_grad and torch.is_grad_enabled():
        return _cpu(self, *arguments, **keywords)
    member = _rows.member_of(_dtensor.parameter_of(self))
    if member is None:
        return _rows.whole_of(self).cpu(*arguments, **keywords)
    whole, = member.unit.model.read_whole([member]).values() or [_rows.whole_of(self)]
    return whole.to(member.working.dtype).cpu(*arguments, **keywords)


def _cpu_of_module(self):
    """Module.cpu: the parameters stay rows."""
    return self._apply(lambda each: _cpu(each) if isinstance(each, DTensor) else each.cpu())


def _reduce_whole(self, protocol):
    """For pickle and copy: a plain tensor, or Parameter, where this rank has all rows. Else it is refused."""
    if not _is_served(self):
        return _reduce(self, protocol)
    if any(ranks > 1 and not each.is_replicate() for each, ranks in zip(self.placements, self.device_mesh.shape)):
        _refuse("pickling or copying, as by torch.save, a parameter, gradient or state, which has only this rank's "
                "rows (save its cpu(), which is whole and which all ranks call, or the module's state_dict())")
    local = self._local_tensor.detach()
    if isinstance(self, torch.nn.Parameter):
        local = torch.nn.Parameter(local, self.requires_grad)
    return local.__reduce_ex__(protocol)


def _status(tensor):
    """TRL asks each parameter whether it is whole."""
    kinds = zero.partition_parameters.ZeroParamStatus
    return kinds.AVAILABLE if all(each.is_replicate() for each in tensor.placements) else kinds.NOT_AVAILABLE


def serve_tensors():
    DTensor.cpu, DTensor.__reduce_ex__ = _whole_cpu, _reduce_whole
    torch.nn.Module.cpu = _cpu_of_module
    DTensor.data = property(DTensor.data.fget, _set_data)
    DTensor.grad = property(DTensor.grad.fget, _set_gradient)
    torch.nn.Module.zero_grad = _zero_grad_of_module


def serve_status():
    torch.Tensor.ds_status = zero.partition_parameters.ZeroParamStatus.AVAILABLE
    DTensor.ds_status = property(_status)


def serve(module):
    """module: deepspeed, right after its import. DeepSpeed's own `initialize` then makes the engine here."""
    def init(self, *arguments, **keywords):
        if not isinstance(self, Engine):
            _refuse(f"DeepSpeed's {type(self).__name__}")
        _refuse_other_engines(self, *arguments, **keywords)

    DeepSpeedEngine.__init__ = init
    if deepspeed.get_accelerator().device_name() == "cpu":  # torch computes in fp16 on every CPU; oneDNN on some
        deepspeed.get_accelerator().is_fp16_supported = lambda: True
    # It compiles collectives in C++ that nothing here calls. deepspeed.comm.torch is torch itself.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    module.DeepSpeedEngine = Engine
    serve_tensors()
    serve_status()
    serve_optimizers()
    for each in (zero, zero.partition_parameters):
        each.Init, each.GatheredParameters = Init, GatheredParameters
        each.register_external_parameter = lambda *_: None
        each.unregister_external_parameter = lambda *_: None
    fragments = sys.modules["deepspeed.utils.tensor_fragment"]
    served = dict(_safe_functions())
    for name in [name for name in vars(fragments) if name.startswith("safe_")]:
        function = _of_current(served[name]) if name in served else _refusing(f"deepspeed.utils.{name}")
        setattr(fragments, name, function)
        if hasattr(module.utils, name):
            setattr(module.utils, name, function)
    if not module.__version__.startswith("0.19."):
        say(f"engine acc: DeepSpeed {module.__version__} is not known, only 0.19")
