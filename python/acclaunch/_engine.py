# SPDX-License-Identifier: Apache-2.0
"""`--engine acc`: puts the runtime behind the interfaces of torch and Accelerate, right after their import."""

import importlib.util
import sys


class _Finder:
    """Calls a function with each of these modules right after its import."""

    def __init__(self, functions):
        self.functions = functions

    def find_spec(self, name, path=None, target=None):
        if name not in self.functions:
            return None
        function = self.functions.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            function(module)

        spec.loader.exec_module = exec_module
        return spec


def _serve_fsdp2(module):
    from acclaunch import _fsdp2
    module.fully_shard = _fsdp2.fully_shard


def _serve_accelerate(state):
    """state: the module accelerate.state. On a CPU Accelerate (1.15) takes no notice of a section for FSDP."""
    original = state.AcceleratorState.__init__

    def init(self, *arguments, fsdp_plugin=None, **keywords):
        known = self.initialized
        original(self, *arguments, fsdp_plugin=fsdp_plugin, **keywords)
        if not known and fsdp_plugin is not None and self.distributed_type == state.DistributedType.MULTI_CPU:
            _use_fsdp2(fsdp_plugin)
            self.distributed_type = state.DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            state.PartialState._shared_state["distributed_type"] = self.distributed_type

    state.AcceleratorState.__init__ = init


def _use_fsdp2(plugin):
    if plugin.fsdp_version == 2:
        return
    from acclaunch._library import NotSupportedError
    raise NotSupportedError("the engine acc serves fsdp_version 2 of Accelerate, the configuration has 1")


_FUNCTIONS = {"torch.distributed.fsdp": _serve_fsdp2, "accelerate.state": _serve_accelerate}


def install():
    waiting = {}
    for name, function in _FUNCTIONS.items():
        if name in sys.modules:
            function(sys.modules[name])
        else:
            waiting[name] = function
    sys.meta_path.insert(0, _Finder(waiting))
