# SPDX-License-Identifier: Apache-2.0
"""Saving, loading and merging sharded checkpoints, compared with torch, Accelerate and plain file I/O.

    python bench/checkpoints.py [--bin build/release/bin] [--python PYTHON] [--dir DIR]...
                                [--bytes N]... [--rounds R] [--part save_load|merge]

For each DIR (results differ between a tmpfs and a disk) and each size, with two processes, measures:
plain writing, overwriting and reading of files, through the page cache and past it; saving and loading
by checkpoint_bench (acclaunch, with checksums and fsync) and by torch.distributed.checkpoint,
interleaved, as medians of the rounds, with CPU seconds, which depend less on other load; then
`acclaunch merge-weights` and `accelerate merge-weights` on the same folder, which torch saved: time from
start to end of the process, and its peak resident memory. Prints lines of JSON, then tables with the
ratios. PYTHON needs torch and accelerate.
"""
import collections
import json
import os
import shutil
import statistics
import tempfile

from launchers import free_port, json_lines, run
from names import PYTHON, Options

HERE = os.path.dirname(os.path.abspath(__file__))
PROCESSES = 2


def peer(args, folder, nbytes, repetitions, *flags):
    return json_lines([args.python, "-m", "torch.distributed.run", "--nproc-per-node", PROCESSES,
                     "--master-port", free_port(), os.path.join(HERE, "checkpoints", "dcp_peer.py"),
                     folder, nbytes, repetitions, *flags])


def show(line, **more):
    print(json.dumps(dict(line, **more)), flush=True)


def save_and_load(args, folder, nbytes):
    programs = [
        lambda: json_lines([os.path.join(args.bin, "raw_io"), folder, nbytes, PROCESSES, 3]),
        lambda: json_lines([os.path.join(args.bin, "checkpoint_bench"), folder, nbytes, PROCESSES, 3]),
        lambda: peer(args, folder, nbytes, 3),
        lambda: peer(args, folder, nbytes, 3, "--no_sync")]
    rows = collections.defaultdict(list)
    for _ in range(args.rounds):
        for program in programs:
            for line in program():
                rows[line["impl"], line["what"]].append(line)
    rates = {}
    for (impl, what), lines in rows.items():
        median, cpu = (statistics.median(line[key] for line in lines) for key in ("seconds", "cpu_s"))
        rates[impl, what] = (lines[0]["bytes"] / median / 1e9, cpu)
        extra = [line["extra_mib"] for line in lines if "extra_mib" in line]
        show({"dir": folder, "impl": impl, "what": what, "bytes": lines[0]["bytes"], "seconds": round(median, 4),
              "cpu_s": round(cpu, 4), "gb_per_s": round(rates[impl, what][0], 3)}, **({"extra_mib": statistics.median(extra)} if extra else {}))
    return rates


def table(rates):
    """Prints the table. A ratio above 1: acclaunch is faster, or uses less CPU time."""
    print(f"{'':<30} {'GB/s':>7} {'ours to it':>11} {'CPU s/process':>16} {'its to ours':>12}")
    for (impl, what), (rate, cpu) in sorted(rates.items()):
        mine, my_cpu = rates["acclaunch", "save" if what == "save" or "write" in what else "load"]
        print(f"{impl + ', ' + what:<30} {rate:7.2f} {mine / rate:10.2f}x {cpu:16.3f} {cpu / max(my_cpu, 1e-4):11.2f}x")
    print(flush=True)


def merge(args, folder, nbytes):
    source = os.path.join(folder, "checkpoint")
    peer(args, folder, nbytes, 1, "--keep")
    out = os.path.join(folder, "merged")
    commands = {
        "acclaunch": [os.path.join(args.bin, "acclaunch"), "merge-weights", source, out],
        "accelerate": [args.python, "-m", "accelerate.commands.accelerate_cli", "merge-weights", source, out]}
    samples = collections.defaultdict(list)
    for _ in range(args.rounds):
        for impl, command in commands.items():
            shutil.rmtree(out, ignore_errors=True)
            samples[impl].append(run(command))
    shutil.rmtree(out)
    shutil.rmtree(source)
    result = {}
    for impl, values in samples.items():
        result[impl] = [statistics.median(column) for column in zip(*((v.wall, v.peak_mib, v.cpu) for v in values))]
        show({"dir": folder, "impl": impl, "what": "merge-weights", "bytes": nbytes,
              "seconds": round(result[impl][0], 4), "peak_mib": round(result[impl][1], 1),
              "cpu_s": round(result[impl][2], 4)})
    return result


def main():
    parser = Options(__doc__, bin="build/release/bin", python=PYTHON, rounds=3)
    parser.add_argument("--dir", action="append")
    parser.add_argument("--bytes", action="append", type=int)
    parser.add_argument("--part", choices=["save_load", "merge"])
    args = parser.parse_args()
    for parent in args.dir or ["/dev/shm"]:
        for nbytes in args.bytes or [512 << 20, 2 << 30]:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                print(f"\n{parent}, {nbytes / 1e6:.0f} MB, {PROCESSES} processes", flush=True)
                if args.part != "merge":
                    table(save_and_load(args, folder, nbytes))
                if args.part != "save_load":
                    merged = merge(args, folder, nbytes)
                    seconds, peaks, cpu = zip(merged["accelerate"], merged["acclaunch"])
                    print(f"merge-weights: {seconds[0] / seconds[1]:.1f}x accelerate's speed, its memory "
                          f"{peaks[0] / peaks[1]:.1f}x ours ({peaks[1]:.0f} MiB), its CPU time {cpu[0] / cpu[1]:.1f}x",
                          flush=True)


if __name__ == "__main__":
    main()
