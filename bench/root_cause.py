#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often the report of a failed job names the rank that made the mistake.

    bench/root_cause.py [--build build/release] [--runs 200] [--load 0] [--machines 1 2 4]

Runs test/integration/root_cause_probe on four ranks, under one launcher, two launchers with two workers
and four launchers with one, with each kind of mistake. The rank that makes it changes from run to run. A
run is correct if the headline of every launcher names that rank and how it ended, the report contains the
rank's own message, and the exit status is that of the rank (or not 0, if the rank ended with 0). --load N
runs N busy processes at the same time.
"""

import re
import subprocess
import sys
import time

from launchers import free_port
from names import Options

RANKS = 4
# mistake: its argument, text of the headline, the rank's message, exit status of the job. {own} is
# 10 + rank.
MISTAKES = {
    "skips step()": ("skips", "exited with code {own}", "rank {rank} was told: ", "{own}"),
    "returns 3": ("returns", "exited with code 3", "rank {rank} gives up", "3"),
    "returns 0": ("leaves", "exited with code 0 while other ranks still needed it", "", "not 0"),
    "throws": ("throws", "exited with code 4", "rank {rank} failed: no data left", "4"),
}


def run_once(build, machines, how, rank):
    port = free_port()
    launchers = [
        subprocess.Popen(
            [f"{build}/bin/acclaunch", "--cpu", "--use_fsdp", "--num_processes", str(RANKS),
             "--num_machines", str(machines), "--machine_rank", str(machine),
             "--main_process_ip", "127.0.0.1", "--main_process_port", str(port),
             f"{build}/bin/root_cause_probe", str(rank), how],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for machine in range(machines)
    ]
    return [(launcher.communicate(timeout=120)[1], launcher.returncode) for launcher in launchers]


def faults_of(ends, mistake, rank):
    _, headline, message, status = (part.format(rank=rank, own=10 + rank) for part in mistake)
    faults = set()
    for text, code in ends:
        found = re.search(r"the job failed: (.*)", text)
        if not found or found.group(1) != f"rank {rank}: {headline}":
            faults.add("headline")
        report = text[found.start():] if found else ""
        if message and message not in report:
            faults.add("message")
        if code == 0 or (status != "not 0" and code != int(status)):
            faults.add("status")
    return faults


def main():
    options = Options(__doc__, build="build/release", runs=200, load=0)
    options.add_argument("--machines", type=int, nargs="*", default=[1, 2, 4])
    given = options.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.load)]
    wrong_runs = 0
    print(f"{'mistake':14} {'machines':>8} {'runs':>5} {'wrong headline':>15} {'lost message':>13} "
          f"{'wrong status':>13} {'s per run':>10}", flush=True)
    try:
        for name, mistake in MISTAKES.items():
            for machines in given.machines:
                wrong = {"headline": 0, "message": 0, "status": 0}
                begin = time.monotonic()
                for number in range(given.runs):
                    rank = number % RANKS
                    ends = run_once(given.build, machines, mistake[0], rank)
                    faults = faults_of(ends, mistake, rank)
                    for fault in faults:
                        wrong[fault] += 1
                    if faults and wrong_runs < 3:
                        print("".join(text for text, _ in ends), file=sys.stderr)
                    wrong_runs += bool(faults)
                each = (time.monotonic() - begin) / given.runs
                print(f"{name:14} {machines:8} {given.runs:5} {wrong['headline']:15} "
                      f"{wrong['message']:13} {wrong['status']:13} {each:10.2f}", flush=True)
    finally:
        for process in busy:
            process.kill()
    return 1 if wrong_runs else 0


if __name__ == "__main__":
    sys.exit(main())
