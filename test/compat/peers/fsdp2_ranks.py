# SPDX-License-Identifier: Apache-2.0
"""fsdp2_ranks.py REPORT FILE...: runs torch's own tests of FSDP 2 (test/distributed/_composable/fsdp, or the copies for
other devices) on a CPU, with the engine that ACC_ENGINE names. REPORT gets a line per test: its name, what became of
it, and why. The sources are read with the CPU in place of the device."""

import contextlib
import os
import re
import sys
import types
import unittest

import ranks as processes
import torch
import torch._dynamo  # noqa: F401
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict  # noqa: F401
import torch.distributed.tensor.parallel  # noqa: F401
import torch.testing._internal.common_distributed as common
from torch.amp.grad_scaler import OptState
from torch.testing._internal import common_fsdp

torch.set_num_threads(1)
WORLD = 4
DEVICES = ("npu", "musa")


def always(*_, **__):
    return lambda function: function


class Device(types.ModuleType):
    """In place of torch.cuda and its like: streams and events without effect."""

    class Stream:
        def __init__(self, *_, **__):
            pass

        def __getattr__(self, _):
            return lambda *_, **__: None

    Event = Stream

    def current_device(self):
        return torch.device("cpu")

    def current_stream(self, *_):
        return self.Stream()

    def stream(self, *_):
        return contextlib.nullcontext()

    def device_count(self):
        return WORLD

    def is_available(self):
        return False

    def synchronize(self, *_):
        pass

    set_device = _sleep = manual_seed = synchronize


def mesh_plan(self, device="cpu", hybrid_shard=False):
    ranks = dist.get_world_size()
    return dist.init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp_replicate", "dp_shard")) if hybrid_shard \
        else dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))


def prepare():
    for name in ("requires_nccl", "requires_accelerator_dist_backend", "skip_if_lt_x_gpu"):
        setattr(common, name, always)
    test = common_fsdp.FSDPTest
    test._spawn_processes = test.setUp = lambda self: None
    test.rank, test.file_name, test._device_mesh_plan = 0, "", mesh_plan
    common_fsdp.FSDPTestMultiThread = test
    common_fsdp.DEVICE_COUNT = WORLD
    for word in DEVICES:
        setattr(torch, word, Device(f"torch.{word}"))
        for owner in (torch.nn.Module, torch.Tensor):
            setattr(owner, word, lambda self, *_: self)
        setattr(torch.Tensor, f"is_{word}", False)
    modules = {
        "torch_npu": {}, "torch_npu.testing": {}, "torch_npu.testing._internal": {},
        "torch_npu.testing.common_distributed": {"skipIfUnsupportMultiNPU": always},
        "torch_npu.testing.common_utils": {"SupportedDevices": always},
        "torch_npu.testing._internal.common_fsdp": {"FSDPNPUTest": test},
        "torch_musa": {}, "torch_musa.core": {}, "torch_musa.core.amp": {}, "torch_musa.testing": {},
        "torch_musa.core.amp.grad_scaler": {"GradScaler": lambda *arguments, **keywords: torch.amp.GradScaler(
            "cpu", *arguments, **keywords), "OptState": OptState},
        "torch_musa.testing.common_fsdp": {"FSDPTest": test, "skip_if_lt_x_gpu": always,
                                           "check_sharded_parity": common_fsdp.check_sharded_parity}}
    for name, values in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)


def for_cpu(source):
    for word in (*DEVICES, "cuda"):
        source = source.replace(f".{word}()", ".cpu()").replace(f"torch.{word}.device_count()", str(WORLD))
        source = source.replace(f"torch.{word}.current_device()", "torch.device('cpu')")
        source = source.replace(f"device(type='{word}'", "device(type='cpu'")
        source = re.sub(rf"([\"']){word}(:0)?\1", "'cpu'", source)
    for old, new in (("device_ids=[self.rank]", "device_ids=None"), ("device_type.type", "'cpu'"),
                     ("device_type = torch.device(get_devtype())", "device_type = torch.device('cpu')"),
                     ("torch.get_device_module(device_type).device_count()", str(WORLD)),
                     ("pin_memory=True", "pin_memory=False")):
        source = source.replace(old, new)
    return source


def tests_of(path):
    module = types.ModuleType("peer")
    module.__file__ = path
    sys.modules["peer"] = module
    with open(path) as file:
        exec(compile(for_cpu(file.read()), path, "exec"), vars(module))
    for cls in list(vars(module).values()):
        if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ == "peer":
            for name in (name for name in dir(cls) if name.startswith("test_")):
                yield cls, name


def main():
    prepare()
    for path in sys.argv[2:]:
        for cls, name in tests_of(path):
            test = cls(name)

            def function(rank, ranks):
                cls.rank = rank
                dist.init_process_group("gloo")
                torch.manual_seed(1)
                test.setUp()
                getattr(test, name)()

            outcome = processes.run(function, min(test.world_size, WORLD), unittest.SkipTest)
            with open(sys.argv[1], "a") as file:
                print(f"{os.path.basename(path)}::{cls.__name__}::{name}", *outcome, sep="\t", file=file)


if __name__ == "__main__":
    main()
