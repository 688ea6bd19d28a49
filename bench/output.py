#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of the workers' output through the launcher, and check that no line is lost.

    bench/output.py [--acclaunch PROGRAM] [--python PYTHON] [--megabytes 512]
                    [--peer_megabytes 32] [--line 100]

Two workers write numbered lines as fast as possible, `megabytes` each. The launcher adds its prefix and,
with --tee, also writes one file per stream. The time is from the first worker's start to the launcher's
end. CPU and memory are those of the launcher's own processes in the run that writes to a pipe: the CPU
time of the run minus that of the workers and of a run without output, and the sum of the processes' peak
RSS. In a separate run a reader counts lost and torn lines. torchrun adds prefixes only with --tee 3.
"""
import os
import pathlib
import subprocess
import tempfile
import threading
import time

from launchers import OPTIONS, cost_of, launchers, memory_of, name_of, processes_below
from names import BIN, Options

RANKS = 2
LINES = BIN / "output_lines"


class Run:
    """One launch, with its stdout connected to `sink`."""

    def __init__(self, command, worker, sink):
        with tempfile.TemporaryDirectory() as folder:
            logs = ["--log-dir", f"{folder}/logs"] if "--tee" in command else []
            self.peak_mib = 0.0
            process = subprocess.Popen(
                command[:-1] + logs + command[-1:] + worker, stdout=sink,
                stderr=subprocess.DEVNULL, env={**os.environ, "FIGURES": folder})
            ended = threading.Event()
            sampler = threading.Thread(target=self.sample, args=(process.pid, ended))
            sampler.start()
            cost = cost_of(process, 0.0)
            end = time.monotonic()
            ended.set()
            sampler.join()
            if process.returncode != 0:
                raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
            figures = [pathlib.Path(f"{folder}/{rank}").read_text().split()
                       for rank in range(RANKS)]
        self.seconds = end - min(float(start) for start, _ in figures)
        self.cpu = cost.cpu - sum(float(cpu) for _, cpu in figures)

    def sample(self, pid, ended):
        while not ended.wait(0.1):
            own = [each for each in processes_below(pid) if name_of(each) != LINES.name]
            self.peak_mib = max(self.peak_mib, memory_of(own)[0])


def count_lines(command, worker, megabytes, line):
    """Returns the numbers "whole lost torn" of a run."""
    lines = megabytes * 1_000_000 // line
    reader = subprocess.Popen([LINES, "check", str(lines), str(line)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    Run(command, worker, reader.stdin)
    reader.stdin.close()
    return reader.stdout.read().decode().split()


def measure(name, command, megabytes, line):
    worker = [str(LINES), "produce", str(megabytes * 1_000_000), str(line)]
    gigabytes = RANKS * megabytes / 1000
    rates = []
    with open("/dev/null", "wb") as null:
        cpu_of_start = Run(command, [str(LINES), "produce", "0", str(line)], null).cpu
    for sink in ("file", "/dev/null", "pipe"):
        with tempfile.TemporaryFile() as file, open("/dev/null", "wb") as null:
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=null)
            target = {"file": file, "/dev/null": null, "pipe": reader.stdin}[sink]
            run = Run(command, worker, target)
            reader.stdin.close()
            reader.wait()
        rates.append(gigabytes / run.seconds)
    whole, lost, torn = count_lines(command, worker, megabytes, line)
    print(f"{name:16}" + "".join(f"{rate:10.3f}" for rate in rates) +
          f"{(run.cpu - cpu_of_start) / gigabytes:12.2f}{run.peak_mib:10.1f}"
          f"{whole:>12}{lost:>8}{torn:>8}", flush=True)
    return rates


def main():
    options = Options(__doc__, **OPTIONS, megabytes=512, peer_megabytes=32, line=100).parse_args()
    face = [options.acclaunch, "torchrun", f"--nproc-per-node={RANKS}"]
    print(f"{RANKS} ranks, lines of {options.line} bytes; acclaunch {options.megabytes} MB per rank, "
          f"torchrun {options.peer_megabytes}; aim: 1 GB/s, nothing lost or torn")
    print(f"{'GB/s to':16}{'file':>10}{'/dev/null':>10}{'pipe':>10}{'CPU s/GB':>12}{'peak MiB':>10}"
          f"{'whole':>12}{'lost':>8}{'torn':>8}")
    measure("acclaunch", [*face, "--no-python"], options.megabytes, options.line)
    ours = measure("acclaunch --tee", [*face, "--tee", "3", "--no-python"], options.megabytes,
                   options.line)
    peer = launchers(options.acclaunch, options.python).get("torchrun")
    if peer:
        *command, last = peer(RANKS, [])
        theirs = measure("torchrun --tee", [*command, "--tee", "3", last], options.peer_megabytes,
                         options.line)
        print(f"{'ratio, --tee':16}" + "".join(f"{a / b:9.1f}x" for a, b in zip(ours, theirs)))


if __name__ == "__main__":
    main()
