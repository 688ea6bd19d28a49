#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of a launcher and its reaction time to a failure: acclaunch, torchrun, accelerate launch.

    bench/supervision.py [--acclaunch PROGRAM] [--python PYTHON] [--rounds 7] [--workers 2,8,64]

The launchers alternate in each round, so that other load slows all of them down equally. Results are
medians. "sh, & and wait" only starts the same processes. Memory is that of the launcher's own processes
while all workers (sleep) run: the sum of their peak RSS, and their PSS. Times after a worker's death are
from the SIGKILL to the first line on the launcher's stderr that names its pid, to the last line of the
report, to the end of the last worker, and to the end of the launcher.
"""
import os
import pathlib
import select
import signal
import statistics
import subprocess
import tempfile
import time

from launchers import OPTIONS, launchers, memory_of, name_of, processes_below, run
from names import Options

AIMS = """aims: a start 100 times as fast, the report within 20 ms of a worker's death,
      15 MB and 64 KB for each worker"""


def medians(rows):
    return [statistics.median(column) for column in zip(*rows)]


def steady_memory(command, workers):
    """Returns the memory of the launcher's processes when all workers have executed their program."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = []
    while len(running) < workers:
        if process.poll() is not None:
            raise SystemExit(f"{' '.join(command)} ended before its workers ran")
        time.sleep(0.01)
        everybody = processes_below(process.pid)
        running = [pid for pid in everybody if name_of(pid) == "sleep"]
    figures = memory_of(set(everybody) - set(running))
    process.terminate()
    process.wait()
    return figures


def bare_shell(workers, worker):
    """Returns the cost of starting the same number of processes without a launcher."""
    return ["/bin/sh", "-c", f"{' '.join(worker)} & " * workers + "wait"]


class DeathWatch:
    """A running job whose workers wait, and the times of events after one of them is killed."""

    def __init__(self, command, workers):
        self.folder = tempfile.TemporaryDirectory()
        place = pathlib.Path(self.folder.name)
        script = place / "worker.sh"  # a file, because torchrun replaces $$ in arguments by $
        script.write_text('cd "$PIDS"; echo $$ > tmp$RANK; mv tmp$RANK $RANK; exec sleep 1000')
        self.process = subprocess.Popen(
            command(workers, ["/bin/sh", str(script)]), stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env={**os.environ, "PIDS": str(place)})
        while not all((place / str(rank)).exists() for rank in range(workers)):
            if self.process.poll() is not None:
                raise SystemExit(self.process.stderr.read().decode())
            time.sleep(0.01)
        self.pids = [int((place / str(rank)).read_text()) for rank in range(workers)]

    def kill_one(self):
        """Returns the seconds until the first line, the end of the report, the end of the last worker, and
        the end of the launcher."""
        poll = select.poll()
        ends = {os.pidfd_open(pid): "worker" for pid in self.pids}
        ends[os.pidfd_open(self.process.pid)] = "launcher"
        for fd in ends:
            poll.register(fd, select.POLLIN)
        err = self.process.stderr.fileno()
        poll.register(err, select.POLLIN)
        victim = self.pids[-1]
        moments, said, open_err = {}, b"", True
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        while ends or open_err:
            for fd, _ in poll.poll():
                now = time.monotonic() - start
                if fd != err:
                    moments[ends.pop(fd)] = now
                    poll.unregister(fd)
                    os.close(fd)
                    continue
                chunk = os.read(err, 1 << 20)
                open_err = bool(chunk)
                if not chunk:
                    poll.unregister(err)
                before, said = said, said + chunk
                if str(victim).encode() in said and str(victim).encode() not in before:
                    moments["line"] = now
                if b"=====" in chunk:
                    moments["report"] = now
        self.process.wait()
        self.folder.cleanup()
        return [moments[key] for key in ("line", "report", "worker", "launcher")]


def table(title, heads, rows):
    """Prints a table. rows: name and numbers; the numbers of peers are followed by their ratio to
    acclaunch's."""
    print(f"\n{title}\n{'':18}" + "".join(f"{head:>20}" for head in heads))
    ours = rows[0][1]
    for name, figures in rows:
        cells = [f"{figure:10.2f} {f'({figure / own:.1f} x)':>9}"
                 for figure, own in zip(figures, ours)]
        print(f"{name:18}" + "".join(cells), flush=True)


def measure_start(commands, workers, rounds):
    starters = {**commands, "sh, & and wait": bare_shell}
    for command in starters.values():  # page cache and .pyc files
        run(command(workers, ["/bin/true"]))
    costs = {name: [] for name in starters}
    for _ in range(rounds):
        for name, command in starters.items():
            cost = run(command(workers, ["/bin/true"]))
            costs[name].append((cost.wall * 1e3, cost.cpu * 1e3))
    memory = {name: steady_memory(command(workers, ["/bin/sleep", "1000"]), workers)
              for name, command in commands.items()}
    table(f"{workers} x /bin/true, start to end",
          ["wall ms", "CPU ms", "peak RSS MiB", "PSS MiB"],
          [(name, medians(costs[name]) + list(memory.get(name, []))) for name in starters])
    return memory


def measure_death(commands, workers, rounds):
    moments = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            moments[name].append([1e3 * t for t in DeathWatch(command, workers).kill_one()])
    table(f"SIGKILL of one of {workers} workers, ms until",
          ["first line", "report", "last worker gone", "launcher gone"],
          [(name, medians(moments[name])) for name in commands])


def main():
    options = Options(__doc__, **OPTIONS, rounds=7, workers=[2, 8, 64]).parse_args()
    sizes = options.workers
    commands = launchers(options.acclaunch, options.python)
    print(f"medians of {options.rounds}, interleaved; (n x): times acclaunch's\n{AIMS}")
    memory = [measure_start(commands, size, options.rounds) for size in sizes]
    if len(sizes) > 1:
        step = (sizes[-1] - sizes[0]) / 1024
        table(f"each worker more, from {sizes[0]} to {sizes[-1]}", ["RSS KiB", "PSS KiB"],
              [(name, [(last - first) / step for first, last in zip(memory[0][name],
                                                                    memory[-1][name])])
               for name in commands])
    for size in sizes:
        measure_death(commands, size, options.rounds)


if __name__ == "__main__":
    main()
