# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import subprocess
import sys
import tempfile

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


def leave_to_ranks(start):
    """Outside of a job: calls `start`, which starts the ranks, and ends the process before it imports torch; with 77
    without it."""
    if "RANK" not in os.environ:
        if importlib.util.find_spec("torch") is None:
            print("skipped: no torch")
            sys.exit(77)
        start()
        sys.exit()


def train_on(*numbers, **options):
    """Leaves to each of these numbers of ranks what follows the call, with a folder. Each rank prints `trained`."""
    def start():
        for ranks in numbers:
            with tempfile.TemporaryDirectory() as folder:
                run = run_ranks(ranks, folder, **options)
            assert run.stdout.count("trained") == ranks, run.stdout + run.stderr

    leave_to_ranks(start)
