# SPDX-License-Identifier: Apache-2.0
"""Makes Accelerate accept `InitProcessGroupKwargs(backend="acc")` on the CPU, where it (1.15) replaces
every back end except mpi by gloo, and refuses the program's choice then."""

import functools
import importlib.util
import sys

from acclaunch._autoload import quietly


def _patch(state):
    """state: the module accelerate.state."""
    prepare = getattr(state.PartialState, "_prepare_backend", None)
    if prepare is None or hasattr(prepare, "__wrapped__"):  # another version, or done already
        return

    @functools.wraps(prepare)
    def prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        prepared, kind = prepare(self, cpu, sagemaker_dp, backend)
        if backend == "acc" and kind == state.DistributedType.MULTI_CPU:
            prepared = backend
        return prepared, kind

    state.PartialState._prepare_backend = prepare_backend


class _Finder:
    """Patches accelerate.state right after its import."""

    def find_spec(self, name, path=None, target=None):
        return quietly(self._patching_spec) if name == "accelerate.state" else None

    def _patching_spec(self):
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("accelerate.state")
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                quietly(lambda: _patch(module))

            spec.loader.exec_module = exec_module
        return spec


def accept_acc():
    """Patches Accelerate now if it is imported, else when it is."""
    state = sys.modules.get("accelerate.state")
    if state is None:
        sys.meta_path.insert(0, _Finder())
    elif hasattr(state, "PartialState"):
        _patch(state)
