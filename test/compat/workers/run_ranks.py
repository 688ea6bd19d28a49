# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

DEADLINE = 900  # seconds; far more than a busy machine needs


def run_ranks(ranks, *arguments, flags=(), preload="torch.distributed.fsdp,torch.distributed.checkpoint.state_dict",
              under=(), variables=None):
    """Starts this test once more on each rank, by the launcher and with the package that its arguments name. Returns
    the ended run, which must succeed. under: a program, with arguments, that starts the launcher."""
    program, acclaunch, package = sys.argv[:3]
    run = subprocess.run([*under, acclaunch, *flags, "--cpu", "--num_processes", str(ranks), "--preload",
                          f"torch._dynamo,{preload}", os.path.abspath(program), *arguments],
                         env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable,
                                           "OMP_NUM_THREADS": "1"} | (variables or {}),
                         capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stdout + run.stderr
    return run
