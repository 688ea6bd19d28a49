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
    from acclaunch import _deepspeed
    _deepspeed.serve(module)


def _serve_accelerate(state):
    """state: the module accelerate.state. On a CPU Accelerate (1.15) takes no notice of sections for FSDP and
    DeepSpeed."""
    import torch
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" and not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"  # else its processes do not know each other
    original = state.AcceleratorState.__init__

    @functools.wraps(original)
    def init(self, mixed_precision=None, *arguments, fsdp_plugin=None, deepspeed_plugin=None, **keywords):
        known = state.AcceleratorState._shared_state != {}  # `initialized` is true with a PartialState alone
        original(self, mixed_precision, *arguments, fsdp_plugin=fsdp_plugin, deepspeed_plugin=deepspeed_plugin, **keywords)
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

    state.AcceleratorState.__init__ = init


def _serve_plugins(module):
    """module: accelerate.utils.dataclasses. A plugin of FSDP 1 becomes one of FSDP 2 with the same strategy."""
    original = module.FullyShardedDataParallelPlugin.__post_init__

    @functools.wraps(original)
    def post_init(self):
        if str(self.fsdp_version or os.environ.get("FSDP_VERSION", "1")) == "1":
            _use_fsdp2(self)
        original(self)

    module.FullyShardedDataParallelPlugin.__post_init__ = post_init


def _use_fsdp2(plugin):
    words = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
    given = (plugin.sharding_strategy or plugin.reshard_after_forward
             or os.environ.get("FSDP_SHARDING_STRATEGY") or os.environ.get("FSDP_RESHARD_AFTER_FORWARD") or words[0])
    strategy = str(getattr(given, "name", given)).upper()
    if strategy.isdigit() and 0 < int(strategy) <= len(words):
        strategy = words[int(strategy) - 1]
    if strategy not in words[:2]:
        _refusing(f"fsdp_version 1 with the strategy {strategy}")()
    plugin.fsdp_version, plugin.reshard_after_forward, plugin.sharding_strategy = 2, strategy == words[0], None
    plugin.backward_prefetch = plugin.forward_prefetch = plugin.use_orig_params = plugin.sync_module_states = None
    if plugin.state_dict_type is None:
        plugin.state_dict_type = os.environ.get("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT")


_FUNCTIONS = {"torch.distributed.fsdp": _serve_fsdp, "deepspeed": _serve_deepspeed,
              "accelerate.state": _serve_accelerate, "accelerate.utils.dataclasses": _serve_plugins}


class _Finder:
    """Calls a function with each of these modules right after its import."""

    def __init__(self, functions):
        self.functions = functions
        self.searching = None

    def find_spec(self, name, path=None, target=None):
        if name not in self.functions or name == self.searching:
            return None
        self.searching = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = None
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            function = self.functions.pop(name)  # here: a program may look for a spec without an import
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
    if os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    waiting = {}
    for name, function in _FUNCTIONS.items():
        if name in sys.modules:
            function(sys.modules[name])
        else:
            waiting[name] = function
    sys.meta_path.insert(0, _Finder(waiting))
    atexit.register(_say_if_unused)
