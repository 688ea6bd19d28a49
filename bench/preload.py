#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start to end of Python workers that import torch: torchrun, acclaunch, and acclaunch with --preload torch.

    bench/preload.py --python PYTHON [--acclaunch PROGRAM] [--rounds 5] [--workers 1,8]

The launchers alternate in each round. A worker adds two tensors; with "first line" the time until all workers have printed
is measured, with "end" the time until the launcher has ended. Results are medians; the ratio is that to torchrun.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from launchers import OPTIONS, cost_of
from names import Options

PROGRAM = "import torch\nprint('started', (torch.ones(3) + torch.ones(3)).sum().item(), flush=True)\n"


def measure(command, workers, environment):
    """Returns the times until all workers have printed their line, and until the end, and the CPU time."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    lines = [time.perf_counter() - start for line in process.stdout if b"started 6.0" in line]
    cost = cost_of(process, start)
    if process.returncode != 0 or len(lines) != workers:
        sys.exit(f"{' '.join(command)} ended with {process.returncode} and {len(lines)} lines")
    return lines[-1], cost.wall, cost.cpu


def main():
    options = Options(__doc__, **OPTIONS, rounds=5, workers=[1, 8]).parse_args()
    if not options.python:
        sys.exit("--python or ACC_PEERS_PYTHON must name a Python with torch")
    environment = os.environ | {"PYTHON_EXEC": options.python, "OMP_NUM_THREADS": "1"}
    ours = [options.acclaunch, "torchrun", "--standalone", "--nproc-per-node"]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program.py"
        program.write_text(PROGRAM)
        for workers in options.workers:
            commands = {
                "torchrun": [options.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                             str(workers), str(program)],
                "acclaunch": [*ours, str(workers), str(program)],
                "acclaunch --preload torch": [*ours, str(workers), "--preload", "torch", str(program)],
            }
            times = {name: [] for name in commands}
            for _ in range(options.rounds):
                for name, command in commands.items():
                    times[name].append(measure(command, workers, environment))
            print(f"{workers} worker{'s' * (workers > 1)}: medians of {options.rounds} rounds")
            print(f"{'':28}{'first line':>12}{'end':>10}{'CPU':>10}{'torchrun / end':>18}")
            medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
            for name, (line, end, cpu) in medians.items():
                ratio = medians["torchrun"][1] / end
                print(f"{name:28}{line:10.2f} s{end:8.2f} s{cpu:8.2f} s{ratio:16.2f} x", flush=True)


main()
