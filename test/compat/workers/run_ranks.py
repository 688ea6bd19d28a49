# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import subprocess
import sys

DEADLINE = 580  # seconds; far more than a busy machine needs
ENGINE_MODULES = ("torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")  # what the engine acc imports of torch


def preload(*modules):
    """The flag with which all ranks are forked from one process that has imported what optimizers of torch import, and
    those of these modules that are installed: each rank would do it again, in 2 to 4 s of CPU time."""
    return ["--preload", ",".join(["torch._dynamo", *(each for each in modules
                                                      if importlib.util.find_spec(each.partition(".")[0]))])]


def run_ranks(ranks, *arguments, flags=(), modules=ENGINE_MODULES, under=(), variables=None):
    """Starts this test once more on each rank, by the launcher and with the package that its arguments name. Returns
    the ended run, which must succeed. modules: for `preload`; under: a program, with arguments, that starts the
    launcher."""
    program, acclaunch, package = sys.argv[:3]
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    run = subprocess.run([*under, acclaunch, *flags, "--cpu", "--num_processes", str(ranks), *preload(*modules),
                          os.path.abspath(program), *map(str, arguments)],
                         env=os.environ | {"PYTHONPATH": path, "PYTHON_EXEC": sys.executable} | (variables or {}),
                         capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stdout + run.stderr
    return run
