#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares acc-rendezvous with a log and without one, and measures the recovery from a log.

    bench/recovery.py [--folder FOLDER] [--rounds 5] [--seconds 0.5]

The log is written in FOLDER (default: the folder for temporary files): the speed of its disk counts, since a
change waits for a flush. The line "flush" shows the time of one flush of a small write there. "no flush time" is
the same on tmpfs: what the daemon itself costs. "bound" is the most that any daemon could reach whose changes wait
for one flush of this time, and whose other requests take no time. The load is that of rendezvous.py: half of the
requests change a key. Values are medians, measured in turn; ratios are medians of the ratios of each turn.
"""
import os
import resource
import statistics
import tempfile
import time

from names import BIN, Options
from rendezvous import KEYS, load, mix, serving

AIMS = "aims: with a log at least 70 % of the operations without; recovery of 1,000,000 keys in 1 s"
CONNECTIONS = [64, 512]


MEMORY = "/dev/shm"


def flush_time(folder):
    """Returns the mean time of a write of 500 bytes and its flush, in ms."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        for _ in range(50):
            begin = time.perf_counter()
            os.write(file.fileno(), bytes(500))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.mean(times) * 1000


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
    options = Options(__doc__, program=str(BIN / "acc-rendezvous"), folder=tempfile.gettempdir(), rounds=5,
                      seconds=0.5).parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(AIMS)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        ways = {"no log": None, "memory": (folder, "memory"), "disk": (folder, "disk"), "no flush time": (memory, "disk")}
        for connections in CONNECTIONS:
            figures = {way: [] for way in ways}
            flushes = []
            for turn in range(options.rounds):
                flushes.append(flush_time(folder))
                for way, place in ways.items():
                    flags = []
                    if place:
                        flags = ["--state_dir", os.path.join(place[0], f"{way}{connections}_{turn}"), "--durability", place[1]]
                    with serving([options.program, "--port", "0", *flags]) as server:
                        figures[way].append(mix(server, connections, 1, options.seconds)["ops_per_s"])
            flush, best = statistics.median(flushes), statistics.median(figures["no log"])
            bound = 1 / (1 / best + 0.5 * flush / 1000 / connections)
            print(f"\nflush in {options.folder}: {flush:.2f} ms")
            for way, values in figures.items():
                ratio = statistics.median(value / base for value, base in zip(values, figures["no log"]))
                print(f"{connections:4} connections, {way:13} {statistics.median(values):10,.0f} operations/s {ratio:7.0%}")
            print(f"{connections:4} connections, {'bound':13} {bound:10,.0f} operations/s {bound / best:7.0%}")
        wall, cpu, size = recovery(options.program, folder)
        print(f"recovery of {KEYS:,} keys: {wall:.2f} s, {cpu:.2f} s of CPU time, log of {size >> 20} MiB")


if __name__ == "__main__":
    main()
