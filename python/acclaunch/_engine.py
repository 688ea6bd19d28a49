# SPDX-License-Identifier: Apache-2.0
"""`--engine acc`: puts the runtime behind the interfaces of torch and Accelerate, right after their import. What
the engine does not serve is refused at the call, so that no program trains on torch's engine by mistake."""

import atexit
import functools
import inspect
import multiprocessing
import os
import sys

from acclaunch import _save_async
from acclaunch._imports import call_after_imports, optimizers
from acclaunch._library import InvalidArgumentError, NotSupportedError, lacks, memory_checkpoint_every, refuse, say


def _watch_optimizers(module):
    """module: torch.optim.optimizer."""
    original = module.Optimizer.__init__

    @functools.wraps(original)
    def init(self, *arguments, **keywords):
        original(self, *arguments, **keywords)
        optimizers.add(self)

    module.Optimizer.__init__ = init
    if memory_checkpoint_every():
        module.register_optimizer_step_pre_hook(_require_snapshots)


def _serve_fsdp(module):
    """module: torch.distributed.fsdp."""
    from acclaunch import _fsdp1, _fsdp2
    names = [module.__name__ + part for part in ("", "._fully_shard", "._fully_shard._fully_shard")]
    for each in filter(None, map(sys.modules.get, names)):
        each.fully_shard = _fsdp2.fully_shard
        each.register_fsdp_forward_method = _fsdp2.register_fsdp_forward_method
        each.share_comm_ctx = lambda *_, **__: refuse("torch.distributed.fsdp.share_comm_ctx")
    theirs = module.FullyShardedDataParallel
    for each in [each for name, each in sys.modules.items() if name.startswith("torch.distributed.")]:
        for attribute in [attribute for attribute, value in vars(each).items() if value is theirs]:
            setattr(each, attribute, _fsdp1.FullyShardedDataParallel)


def _serve_deepspeed(module):
    from acclaunch import _deepspeed
    _deepspeed.serve(module)


def _serve_accelerate(state):
    """state: the module accelerate.state. On a CPU Accelerate (1.15) takes no notice of sections for FSDP and
    DeepSpeed, and a PartialState that the program makes first of the variable that AcceleratorState reads: each rank
    would be alone."""
    _check_accelerate(state.AcceleratorState.__init__, "fsdp_plugin", "deepspeed_plugin")
    import torch
    original, original_partial = state.AcceleratorState.__init__, state.PartialState.__init__

    def uses_cpu():
        if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" and not torch.cuda.is_available():
            os.environ["ACCELERATE_USE_CPU"] = "true"
        return os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true"

    @functools.wraps(original_partial)
    def init_partial(self, cpu=False, **keywords):
        original_partial(self, uses_cpu() or cpu, **keywords)

    @functools.wraps(original)
    def init(self, mixed_precision=None, *arguments, fsdp_plugin=None, deepspeed_plugin=None, **keywords):
        uses_cpu()
        known = state.AcceleratorState._shared_state != {}  # `initialized` is true with a PartialState alone
        original(self, mixed_precision, *arguments, fsdp_plugin=fsdp_plugin, deepspeed_plugin=deepspeed_plugin,
                 **keywords)
        if known or self.distributed_type not in (state.DistributedType.MULTI_CPU, state.DistributedType.NO):
            return
        if deepspeed_plugin is not None and os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
            plugins = deepspeed_plugin if isinstance(deepspeed_plugin, dict) else {"": deepspeed_plugin}
            for plugin in plugins.values():
                plugin.set_mixed_precision(self._mixed_precision)
            next(iter(plugins.values())).select(_from_accelerator_state=True)
            self.deepspeed_plugins, self._mixed_precision = deepspeed_plugin, "no"
            self.distributed_type = state.DistributedType.DEEPSPEED
        elif fsdp_plugin is not None and self.distributed_type == state.DistributedType.MULTI_CPU:
            self.distributed_type = state.DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
        state.PartialState._shared_state["distributed_type"] = self.distributed_type

    state.AcceleratorState.__init__, state.PartialState.__init__ = init, init_partial


def _check_accelerate(function, *names):
    """Raises if a function of Accelerate has no such parameters, and says if the version is unknown."""
    version = sys.modules["accelerate"].__version__
    missing = [name for name in names if name not in inspect.signature(function).parameters]
    if missing:
        raise NotSupportedError(f"the engine acc cannot serve Accelerate {version}: {function.__qualname__} has no "
                                f"parameter {missing[0]}; leave --engine acc out, or install Accelerate 1.12 to 1.15")
    if version.split(".")[:2] not in [["1", minor] for minor in ("12", "13", "14", "15")] \
            and os.environ.get("RANK", "0") == "0":
        say(f"engine acc: Accelerate {version} is no version that it was tested with (1.12 to 1.15)")


def _serve_plugins(module):
    """module: accelerate.utils.dataclasses. Without a GPU Accelerate refuses sync_module_states at the end of this
    function. Its plugin for DeepSpeed reads variables that Accelerate's launcher does not set."""
    original_deepspeed = module.DeepSpeedPlugin.__post_init__

    @functools.wraps(original_deepspeed)
    def post_init_deepspeed(self):
        for kind in ("OPTIMIZER", "PARAM"):
            path = os.environ.get(f"ACC_OFFLOAD_{kind}_NVME_PATH")
            if path is not None:
                os.environ.setdefault(f"ACCELERATE_DEEPSPEED_OFFLOAD_{kind}_NVME_PATH", path)
        original_deepspeed(self)

    module.DeepSpeedPlugin.__post_init__ = post_init_deepspeed
    original = module.FullyShardedDataParallelPlugin.__post_init__

    @functools.wraps(original)
    def post_init(self):
        try:
            original(self)
        except RuntimeError as error:
            if not self.sync_module_states or "no available devices" not in str(error):
                raise
            self.param_init_fn = functools.partial(_empty, device="cpu")

    module.FullyShardedDataParallelPlugin.__post_init__ = post_init


def _empty(module, device):
    module.to_empty(device=device, recurse=False)


def _serve_peft(module):
    """module: peft.utils.save_and_load. It does not find adapters in wrappers of FSDP 1, and would save and load only
    others."""
    def checked(original):
        @functools.wraps(original)
        def call(model, *arguments, **keywords):
            if any("_fsdp_wrapped_module" in name for name, _ in model.named_modules()):
                refuse(f"{original.__name__} under FSDP 1, whose wrappers hide adapters (take fsdp_version 2)")
            return original(model, *arguments, **keywords)

        return call

    for name in ("get_peft_model_state_dict", "set_peft_model_state_dict"):
        if not lacks(module, "adapters under FSDP 1 are not refused, of which checkpoints lack some", name):
            setattr(module, name, checked(getattr(module, name)))


def _serve_safetensors(module):
    """module: safetensors.torch, whose error for a DTensor ("invalid python storage") names neither cause nor way."""
    if not hasattr(module, "storage_ptr"):
        return
    original = module.storage_ptr

    @functools.wraps(original)
    def storage_ptr(tensor):
        if type(tensor).__name__ == "DTensor":
            raise InvalidArgumentError(
                f"safetensors: a tensor of shape {list(tensor.shape)} to save is a DTensor, which has only this rank's "
                "rows: give it whole values, as by save_pretrained(…, state_dict=accelerator.get_state_dict(model)) "
                "on all ranks")
        return original(tensor)

    module.storage_ptr = storage_ptr


def _serve_optimizer_files(module):
    """module: accelerate.utils.fsdp_utils. With version 1 and SHARDED_STATE_DICT it reads what the optimizer has states
    of: nothing before its first step."""
    if lacks(module, "with FSDP 1 a new optimizer gets no states from SHARDED_STATE_DICT", "load_fsdp_optimizer"):
        return
    original = module.load_fsdp_optimizer

    @functools.wraps(original)
    def load_fsdp_optimizer(fsdp_plugin, accelerator, optimizer, *arguments, **keywords):
        if fsdp_plugin.fsdp_version == 1 and fsdp_plugin.state_dict_type.name == "SHARDED_STATE_DICT":
            from torch.distributed.checkpoint.state_dict import _init_optim_state
            _init_optim_state(getattr(optimizer, "optimizer", optimizer))
        return original(fsdp_plugin, accelerator, optimizer, *arguments, **keywords)

    module.load_fsdp_optimizer = load_fsdp_optimizer


def _keep_optimizers(module):
    """module: accelerate.utils.deepspeed. With offload_optimizer Accelerate takes an optimizer of DeepSpeed with the
    same rule, which compiles C++ code and of which the engine makes torch's again."""
    module.map_pytorch_optim_to_deepspeed = lambda optimizer: optimizer


def _serve_saves(module):
    """module: accelerate.accelerator."""
    _check_accelerate(module.Accelerator.save_state, "output_dir")
    _save_async.serve_accelerate(module)


def _serve_dcp(module):
    """module: torch.distributed.checkpoint."""
    from acclaunch import _staging
    _staging.serve_async_save(module)
    _save_async.serve_files(module)


def _serve_bitsandbytes(module):
    """module: bitsandbytes.optim.optimizer."""
    from acclaunch import _bitsandbytes
    _bitsandbytes.serve(module)


def _serve_trainer(module):
    """module: transformers.trainer."""
    _save_async.serve_trainer(module)
    if memory_checkpoint_every():
        from acclaunch import _trainer
        _trainer.serve(module)


_FUNCTIONS = {"torch.optim.optimizer": _watch_optimizers, "torch.distributed.fsdp": _serve_fsdp,
              "bitsandbytes.optim.optimizer": _serve_bitsandbytes, "deepspeed": _serve_deepspeed,
              "accelerate.state": _serve_accelerate, "accelerate.utils.dataclasses": _serve_plugins,
              "accelerate.accelerator": _serve_saves,
              "transformers.trainer_utils": _save_async.serve_trainer_utils,
              "transformers.trainer": _serve_trainer,
              "torch.distributed.checkpoint": _serve_dcp,
              "accelerate.utils.fsdp_utils": _serve_optimizer_files,
              "accelerate.utils.deepspeed": _keep_optimizers, "peft.utils.save_and_load": _serve_peft,
              "safetensors.torch": _serve_safetensors}


def _say_if_unused():
    used = "acclaunch._fsdp2" in sys.modules and sys.modules["acclaunch._fsdp2"].was_used()
    failed = getattr(sys, "last_value", None) is not None
    if not used and not failed and multiprocessing.parent_process() is None and os.environ.get("RANK") == "0":
        say("--engine acc had no effect: the program has run no sharded module")


def _require_snapshots(optimizer, *_):
    """Raises at the first step of a program that keeps nothing of its state in memory. Steps with a rate of 0, as that
    by which torch makes the states that it loads, may come before."""
    snapshots = sys.modules.get("acclaunch.snapshots")
    is_step = any(group.get("lr", 1) != 0 for group in optimizer.param_groups)
    if is_step and (snapshots is None or not snapshots.made):
        raise NotSupportedError(
            "memory_checkpoint_every: the engine acc does not support it in a program without "
            "acclaunch.snapshots.Snapshots, since the state is the program's. Add two lines to the program "
            "(docs/engine.md, \"Snapshots in memory\"), or leave memory_checkpoint_every out")


@functools.cache  # also in a worker that --preload forked from a process that has done it
def install():
    if os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    call_after_imports(_FUNCTIONS)
    atexit.register(_say_if_unused)
    atexit.register(_save_async.at_exit)
    _save_async.serve_groups()
    _save_async.serve_exit()
