# SPDX-License-Identifier: Apache-2.0
"""The back end "acc" of torch.distributed (docs/c10d.md): importing this module registers it.

    import acclaunch.c10d
    torch.distributed.init_process_group("acc")             # or "cpu:acc,cuda:nccl"

Where this package is found by torch's own plugin mechanism (the entry point `torch.backends` of an
installed package or of a folder in PYTHONPATH), no import is needed.
"""

import functools
import os
import sys

import torch.distributed as dist

from acclaunch import _flight
from acclaunch._imports import call_after_imports, quietly

__all__ = ["register", "replace_gloo"]


def _create(options, backend_options):
    from acclaunch.process_group import create

    # The helper of torch that calls this knows which back ends the group has for other devices. It
    # does not pass that on, and a Python ProcessGroup replaces them all.
    caller = sys._getframe(1).f_locals
    config, made = caller.get("backend_config"), caller.get("pg")
    others = dict(config.device_backend_map) if config is not None else {}
    return create(options, backend_options, others, made)


def register():
    """Registers the back end, also with Accelerate; a second call does nothing."""
    if "ACC" not in dist.Backend._plugins:
        dist.Backend.register_backend("acc", _create, extended_api=True, devices=["cpu"])
        call_after_imports({"accelerate.state": _accept_acc}, quietly)
        quietly(_set_timeouts_of_acc)


def _accept_acc(state):
    """Lets Accelerate accept `InitProcessGroupKwargs(backend="acc")` on the CPU, where it (1.15) replaces every back
    end except mpi by gloo, and refuses the program's choice then. state: the module accelerate.state."""
    prepare = getattr(state.PartialState, "_prepare_backend", None)
    if prepare is None or hasattr(prepare, "__wrapped__"):  # another version, or done already
        return

    @functools.wraps(prepare)
    def prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        prepared, kind = prepare(self, cpu, sagemaker_dp, backend)
        return backend if backend == "acc" and kind == state.DistributedType.MULTI_CPU else prepared, kind

    state.PartialState._prepare_backend = prepare_backend


def _set_timeouts_of_acc():
    """Lets torch's `_set_pg_timeout`, which knows two of torch's own back ends by their types, know ours."""
    module = dist.distributed_c10d
    original = module._set_pg_timeout

    @functools.wraps(original)
    def _set_pg_timeout(timeout, group=None):
        found = module._get_default_group() if group is None else group
        is_ours = type(found).__module__ == "acclaunch.process_group"
        return found.set_timeout(timeout) if is_ours else original(timeout, group)

    module._set_pg_timeout = _set_pg_timeout


def replace_gloo():
    """From now on `gloo` means `acc` for CPU tensors; dist.get_backend() still returns what the
    program asked for. Groups that exist are not changed."""
    config = dist.distributed_c10d.BackendConfig
    original = config.get_device_backend_map
    if getattr(original, "replaces_gloo", False):
        return

    def get_device_backend_map(self):
        found = dict(original(self))
        if found.get("cpu") == dist.Backend.GLOO:
            # First, so that the group that is made for it has the back ends of all devices.
            found = {"cpu": dist.Backend("acc"), **{d: b for d, b in found.items() if d != "cpu"}}
        return found

    get_device_backend_map.replaces_gloo = True
    config.get_device_backend_map = get_device_backend_map


def follow_environment():
    """Registers the back end, lets it replace gloo if the launcher was told so (--cpu_backend), and starts the
    thread that answers the launcher. A process that --preload forked calls it again, with its own variables."""
    register()
    backend = os.environ.get("ACC_CPU_BACKEND", "")
    if backend == "acc":
        replace_gloo()
    elif backend not in ("", "gloo"):
        raise ValueError(f"ACC_CPU_BACKEND is '{backend}', expected acc or gloo")
    quietly(_flight.serve)


if dist.is_available():
    follow_environment()
