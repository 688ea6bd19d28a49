# SPDX-License-Identifier: Apache-2.0
"""Launchers that the other scripts of this folder compare, and measurement of their cost.

The peers are modules of a Python with torch and accelerate (--python or $ACC_PEERS_PYTHON). Without such a
Python only acclaunch is measured.
"""
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from names import BIN

# Options of a script that compares launchers.
OPTIONS = {"acclaunch": str(BIN / "acclaunch"), "python": os.environ.get("ACC_PEERS_PYTHON")}


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
    """Seconds of a run, user and system time of all processes that were reaped, and the largest resident memory of one
    of them in MiB."""
    wall: float
    cpu: float
    peak_mib: float


def cost_of(process, start):
    """Waits for the end of a process that began at `start`, and sets its returncode."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def run(command, **streams):
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), **{"stdout": subprocess.DEVNULL,
                                                           "stderr": subprocess.PIPE, **streams})
    said = process.stderr.read().decode() if process.stderr else ""
    cost = cost_of(process, start)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{said[-2000:]}")
    return cost


def json_lines(command, **variables):
    """Returns the JSON objects at the ends of lines that a command prints. `variables`: of its environment."""
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True,
                          env=os.environ | variables)
    return [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines() if '{"' in line]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


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
