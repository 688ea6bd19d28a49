# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs DeepSpeed's own tests on a CPU, with the engine that ACC_ENGINE names:

    cd DEEPSPEED/tests; ACC_ENGINE=acc PYTHONPATH=PACKAGE:THIS_FOLDER PEER_REPORT=FILE \\
        python -m pytest -p deepspeed_ranks unit/v1/zero unit/runtime unit/checkpoint

FILE gets a line per test: its name, what became of it, and why. Ranks are forked from pytest, and checks of the tests
for a GPU that a CPU passes as well are taken out."""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_SIZE", "4")

import deepspeed  # noqa: E402
import pytest  # noqa: E402
import ranks as processes  # noqa: E402
import torch  # noqa: E402

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles C++ code
torch.set_num_threads(1)


def _outcome(function, ranks):
    kind, words = processes.run(function, ranks, pytest.skip.Exception)
    if kind == "failed":
        pytest.fail(words, pytrace=False)
    if kind == "skipped":
        pytest.skip(words)


def _launch(test, num_procs, init_method):
    def function(rank, ranks):
        if test.init_distributed:
            deepspeed.init_distributed(dist_backend=test.backend, rank=rank, world_size=ranks)
        test.run(**test._fixture_kwargs)

    _outcome(function, num_procs)


def _agreed(flag, op=all):
    """unit.common.reduce_boolean_flags, which gathers a scalar; Gloo cannot."""
    found = torch.tensor([int(flag)])
    torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MIN if op is all else torch.distributed.ReduceOp.MAX)
    return bool(found)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if not getattr(item.cls, "is_dist_test", False):  # it may make a process group all the same
        run = item.runtest
        item.runtest = lambda: _outcome(lambda rank, ranks: run(), 1)


def pytest_collection_finish(session):
    from unit import common

    common.DistributedExec._launch_procs = _launch
    common.DistributedExec.reuse_dist_env = False
    common.reduce_boolean_flags = _agreed
    for name, module in list(sys.modules.items()):
        if name.startswith("unit.") and hasattr(module, "bf16_required_version_check"):
            module.bf16_required_version_check = lambda *_, **__: True
    type(deepspeed.get_accelerator()).current_device = lambda self: torch.device("cpu")
    parallel = torch.nn.parallel.DistributedDataParallel
    original = parallel.__init__

    def init(self, module, device_ids=None, output_device=None, *arguments, **keywords):
        original(self, module, *arguments, **keywords)

    parallel.__init__ = init


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        with open(os.environ["PEER_REPORT"], "a") as file:
            print(report.nodeid, report.outcome, " ".join(words.split())[:600], sep="\t", file=file)
