#!/usr/bin/env python3
"""Time and memory of starting two do-nothing workers: acclaunch, torchrun, accelerate launch.

    bench/launch.py [--acclaunch build/release/bin/acclaunch] [--rounds 15]

The peers come from the virtual environment of $ACC_PEERS_PYTHON (a python with torch and
accelerate). The three take turns in each round, so that a busy machine slows all of them alike.
Memory is the peak over a run of its own, sampled: RSS and PSS summed over the launcher's
processes, and the largest RSS of a single one. The workers (sleep) are not counted.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS = 2


def commands(acclaunch, python):
    """Name -> function from a worker's command to the whole command line."""
    found = {"acclaunch": lambda w: [acclaunch, "--cpu", "--num_processes", str(WORKERS), *w]}
    if python:
        found["torchrun"] = lambda w: [
            python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(WORKERS), "--no-python", *w]
        # On a CPU, accelerate starts torchrun's agent for --multi_gpu only.
        found["accelerate launch"] = lambda w: [
            python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
            "--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(WORKERS),
            "--main_process_port", "0", "--no_python", *w]
    return found


def run_once(command):
    start = time.perf_counter()
    result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds = time.perf_counter() - start
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr.decode()[-2000:]}")
    return seconds


def tree(pid):
    """pid and all processes below it."""
    found = [pid]
    for parent in found:
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                pass
    return found


def memory(pid):
    """(RSS, PSS) in KiB; zeros for a process that is gone or is a worker."""
    try:
        if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
            return 0, 0
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        fields = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        return fields["Rss"], fields["Pss"]
    except (OSError, IndexError, KeyError):
        return 0, 0


def peak_memory(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rss_sum = pss_sum = largest = 0
    while process.poll() is None:
        each = [memory(pid) for pid in tree(process.pid)]
        rss_sum = max(rss_sum, sum(rss for rss, _ in each))
        pss_sum = max(pss_sum, sum(pss for _, pss in each))
        largest = max([largest] + [rss for rss, _ in each])
        time.sleep(0.002)
    return rss_sum / 1024, pss_sum / 1024, largest / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--acclaunch", default=str(ROOT / "build/release/bin/acclaunch"))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    launchers = commands(options.acclaunch, os.environ.get("ACC_PEERS_PYTHON"))
    if len(launchers) == 1:
        print("ACC_PEERS_PYTHON is not set: no peers", file=sys.stderr)

    for command in launchers.values():  # page cache and .pyc files
        run_once(command(["/bin/true"]))
    times = {name: [] for name in launchers}
    for _ in range(options.rounds):
        for name, command in launchers.items():
            times[name].append(run_once(command(["/bin/true"])))

    print(f"{WORKERS} x /bin/true, median of {options.rounds}, interleaved")
    print(f"{'':18} {'median ms':>10} {'min ms':>8} {'ratio':>7} {'RSS sum MiB':>12} "
          f"{'PSS sum MiB':>12} {'largest MiB':>12}")
    ours = statistics.median(times["acclaunch"])
    for name, command in launchers.items():
        median = statistics.median(times[name])
        rss, pss, largest = peak_memory(command(["/bin/sleep", "0.5"]))
        print(f"{name:18} {median * 1e3:10.1f} {min(times[name]) * 1e3:8.1f} {median / ours:7.1f} "
              f"{rss:12.1f} {pss:12.1f} {largest:12.1f}")


if __name__ == "__main__":
    main()
