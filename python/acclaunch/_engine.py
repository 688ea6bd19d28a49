# SPDX-License-Identifier: Apache-2.0
"""`--engine acc`: puts the runtime behind the interfaces of torch and Accelerate, right after their import. What
the engine does not serve is refused at the call, so that no program trains on torch's engine by mistake."""

import atexit
import functools
import importlib.util
import multiprocessing
import os
import sys


def _refusing(name):
    def refuse(*_, **__):
        from acclaunch._library import NotSupportedError
        raise NotSupportedError(f"{name}: the engine acc does not serve it (docs/engine.md); leave --engine acc out to "
                                "run the program on torch's engine")
    return refuse


def _serve_fsdp(module):
    """module: torch.distributed.fsdp."""
    from acclaunch import _fsdp2
    names = [module.__name__ + part for part in ("", "._fully_shard", "._fully_shard._fully_shard")]
    for each in filter(None, map(sys.modules.get, names)):
        each.fully_shard = _fsdp2.fully_shard
        each.register_fsdp_forward_method = _fsdp2.register_fsdp_forward_method
        each.share_comm_ctx = _refusing("torch.distributed.fsdp.share_comm_ctx")
    module.FullyShardedDataParallel.__init__ = _refusing("torch.distributed.fsdp.FullyShardedDataParallel")


def _serve_deepspeed(module):
    module.initialize = _refusing("deepspeed.initialize")


def _serve_accelerate(state):
    """state: the module accelerate.state. On a CPU Accelerate (1.15) takes no notice of sections for FSDP and
    DeepSpeed."""
    original = state.AcceleratorState.__init__

    @functools.wraps(original)
    def init(self, *arguments, fsdp_plugin=None, **keywords):
        known = self.initialized
        if not known and fsdp_plugin is not None and fsdp_plugin.fsdp_version != 2:
            _use_fsdp2(fsdp_plugin)
        original(self, *arguments, fsdp_plugin=fsdp_plugin, **keywords)
        if known:
            return
        if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
            _refusing("a DeepSpeed section of Accelerate")()
        if fsdp_plugin is not None and self.distributed_type == state.DistributedType.MULTI_CPU:
            self.distributed_type = state.DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            state.PartialState._shared_state["distributed_type"] = self.distributed_type

    state.AcceleratorState.__init__ = init


def _use_fsdp2(plugin):
    """Makes a plugin of FSDP 1 one of FSDP 2, with the same strategy."""
    strategy = getattr(plugin.sharding_strategy or plugin.reshard_after_forward, "name", "")
    reshards = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}.get(strategy)
    if reshards is None:
        _refusing(f"fsdp_version 1 with the strategy {strategy}")()
    if plugin.ignored_modules is not None:
        _refusing("ignored_modules of fsdp_version 1")()
    offloads = plugin.cpu_offload and plugin.cpu_offload.offload_params
    plugin.__init__(
        fsdp_version=2, reshard_after_forward=reshards, cpu_offload=bool(offloads),
        auto_wrap_policy=plugin.auto_wrap_policy, state_dict_type=plugin.state_dict_type,
        transformer_cls_names_to_wrap=plugin.transformer_cls_names_to_wrap, min_num_params=plugin.min_num_params,
        activation_checkpointing=plugin.activation_checkpointing,
        cpu_ram_efficient_loading=plugin.cpu_ram_efficient_loading)


_FUNCTIONS = {"torch.distributed.fsdp": _serve_fsdp, "accelerate.state": _serve_accelerate,
              "deepspeed": _serve_deepspeed}


class _Finder:
    """Calls a function with each of these modules right after its import."""

    def __init__(self, functions):
        self.functions = functions

    def find_spec(self, name, path=None, target=None):
        function = self.functions.pop(name, None)
        spec = importlib.util.find_spec(name) if function is not None else None
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            function(module)

        spec.loader.exec_module = exec_module
        return spec


def _say_if_unused():
    used = "acclaunch._fsdp2" in sys.modules and sys.modules["acclaunch._fsdp2"].was_used()
    failed = getattr(sys, "last_value", None) is not None
    if not used and not failed and multiprocessing.parent_process() is None and os.environ.get("RANK") == "0":
        print("acclaunch: --engine acc had no effect: the program has sharded nothing", file=sys.stderr, flush=True)


_installed = False


def install():
    """Does nothing in a worker that --preload forked from a process that has done it."""
    global _installed
    if _installed:
        return
    _installed = True
    waiting = {}
    for name, function in _FUNCTIONS.items():
        if name in sys.modules:
            function(sys.modules[name])
        else:
            waiting[name] = function
    sys.meta_path.insert(0, _Finder(waiting))
    atexit.register(_say_if_unused)
