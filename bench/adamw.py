# SPDX-License-Identifier: Apache-2.0
"""The fused AdamW update against torch.optim.AdamW(fused=True) and DeepSpeed's CPUAdam, interleaved.

    python bench/adamw.py [--bin build/release/bin/adamw_bench] --peer PEER.py [--python PYTHON]
                          [--deepspeed] [--rounds R]

PEER.py prints lines of JSON in the format of adamw_bench. It runs with PYTHON, which needs torch, and
with --deepspeed a DeepSpeed whose C++ extension can be built. Prints for each implementation the median
over the rounds of each round's median and the ratio to torch; for acclaunch also its rate divided by the
rate of a loop that only adds over the same arrays.
"""
import argparse
import collections
import json
import os
import statistics
import subprocess
import sys


def lines_of(argv):
    output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin/adamw_bench")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--python", default=os.environ.get("ACC_PEERS_PYTHON", sys.executable))
    parser.add_argument("--params", type=int, default=32 << 20)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    seconds, of_streams = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(args.rounds):
        ours = [args.bin, str(args.params), args.threads]
        peer = [args.python, args.peer, "--params", str(args.params), "--threads", args.threads]
        peer += ["--deepspeed"] * args.deepspeed
        for row in lines_of(ours) + lines_of(peer):
            seconds[row["threads"], row["impl"]].append(row["median_s"])
            if "of_streams" in row:
                of_streams[row["threads"], row["impl"]].append(row["of_streams"])

    print(f"{'threads':>7}  {'implementation':<16} {'ms':>8} {'GB/s':>7}  against torch_fused  of the memory's rate")
    for (threads, impl), values in sorted(seconds.items()):
        median = statistics.median(values)
        torch = statistics.median(seconds[threads, "torch_fused"])
        print(f"{threads:>7}  {impl:<16} {median * 1e3:8.2f} {28e-9 * args.params / median:7.2f}"
              f"  {torch / median:18.2f}x"
              + (f"  {statistics.median(of_streams[threads, impl]):20.2f}"
                 if of_streams[threads, impl] else ""))


if __name__ == "__main__":
    main()
