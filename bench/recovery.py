#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares acc-rendezvous with a log and without one, and measures the recovery from a log.

    bench/recovery.py [--folder FOLDER] [--rounds 5] [--seconds 0.5]

The log is written in FOLDER (default: the folder for temporary files): the speed of its disk counts, since each
reply waits for a flush. The line "flush" shows the time of one flush of a small write there. The load is that
of rendezvous.py: half of the requests change a key. Values are medians, measured in turn.
"""
import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time

from launchers import BIN
from rendezvous import KEYS, load, mix, serving

AIMS = "aims: with a log at least 70 % of the operations without; recovery of 1,000,000 keys in 1 s"
CONNECTIONS = [64, 512]


def flush_time(folder):
    """Returns the median time of a write of 500 bytes and its flush, in ms."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        for _ in range(50):
            begin = time.perf_counter()
            os.write(file.fileno(), bytes(500))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def recovery(program, folder):
    """Stores a million keys and kills the daemon. Returns the time until it serves again and its CPU time, in s,
    and the size of the log."""
    state = os.path.join(folder, "keys")
    command = [program, "--port", "0", "--state_dir", state, "--durability", "memory"]
    with serving(command) as server:
        load(server, "fill", KEYS)
    walls, cpus = [], []
    for _ in range(3):
        begin = time.perf_counter()
        with serving(command) as server:
            walls.append(time.perf_counter() - begin)
            fields = open(f"/proc/{server.pid}/stat").read().rsplit(")", 1)[1].split()
            cpus.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return statistics.median(walls), statistics.median(cpus), os.path.getsize(os.path.join(state, "log"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(BIN / "acc-rendezvous"))
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"{AIMS}\nflush in {options.folder}: {flush_time(options.folder):.2f} ms\n")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for connections in CONNECTIONS:
            figures = {"no log": [], "memory": [], "disk": []}
            for turn in range(options.rounds):
                for way, values in figures.items():
                    state = os.path.join(folder, f"{way}{connections}_{turn}")
                    flags = [] if way == "no log" else ["--state_dir", state, "--durability", way]
                    with serving([options.program, "--port", "0", *flags]) as server:
                        values.append(mix(server, connections, 1, options.seconds)["ops_per_s"])
            medians = {way: statistics.median(values) for way, values in figures.items()}
            for way, figure in medians.items():
                print(f"{connections:4} connections, {way:7} {figure:10,.0f} operations/s {figure / medians['no log']:7.0%}")
        wall, cpu, size = recovery(options.program, folder)
        print(f"recovery of {KEYS:,} keys: {wall:.2f} s, {cpu:.2f} s of CPU time, log of {size >> 20} MiB")


if __name__ == "__main__":
    main()
