# SPDX-License-Identifier: Apache-2.0
"""Launchers that the other scripts of this folder compare, and measurement of their cost.

The peers are modules of a Python with torch and accelerate (--python or $ACC_PEERS_PYTHON). Without such a
Python only acclaunch is measured.
"""
import dataclasses
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"


def add_launcher_options(parser):
    parser.add_argument("--acclaunch", default=str(BIN / "acclaunch"))
    parser.add_argument("--python", default=os.environ.get("ACC_PEERS_PYTHON"))


def launchers(acclaunch, python):
    """Returns name -> function that maps the number of workers and a worker's command to the full command."""
    found = {"acclaunch": lambda n, w: [acclaunch, "--cpu", "--num_processes", str(n), *w]}
    if python:
        found["torchrun"] = lambda n, w: [
            python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n),
            "--no-python", *w]
        # On a CPU, accelerate starts torchrun's agent only with --multi_gpu.
        found["accelerate launch"] = lambda n, w: [
            python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
            "--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(n),
            "--main_process_port", "0", "--no_python", *w]
    else:
        print("neither --python nor ACC_PEERS_PYTHON is given: no peers", file=sys.stderr)
    return found


@dataclasses.dataclass
class Cost:
    """Returns the wall-clock time of a run, and the user and system time of all processes that were reaped."""
    wall: float
    cpu: float


def run(command, **streams):
    start = time.perf_counter()
    process = subprocess.Popen(command, **{"stdout": subprocess.DEVNULL,
                                           "stderr": subprocess.PIPE, **streams})
    said = process.stderr.read().decode() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{said[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


def processes_below(pid):
    """Returns pid and all its descendants."""
    found = [pid]
    for parent in found:
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                pass
    return found


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kib(pid, file, field):
    """Returns a field of a file in /proc/PID in KiB; 0 if the process has ended."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def memory_of(pids):
    """Returns in MiB the sum of the processes' peak RSS, and the sum of their current PSS."""
    return (sum(kib(pid, "status", "VmHWM") for pid in pids) / 1024,
            sum(kib(pid, "smaps_rollup", "Pss") for pid in pids) / 1024)
