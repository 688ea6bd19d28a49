"""The fused AdamW update against torch.optim.AdamW(fused=True), in one run, interleaved.

    python bench/adamw.py --bin build/release/bin/adamw_bench --peer PEER.py [--python PYTHON]
                          [--rounds R]

PEER.py prints lines of JSON as adamw_bench does; it runs with PYTHON, which needs torch. Prints the
median of the rounds' medians for each and the ratio to torch.
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
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    seconds = collections.defaultdict(list)
    for _ in range(args.rounds):
        ours = [args.bin, str(args.params), args.threads]
        peer = [args.python, args.peer, "--params", str(args.params), "--threads", args.threads]
        for row in lines_of(ours) + lines_of(peer):
            seconds[row["threads"], row["impl"]].append(row["median_s"])

    print(f"{'threads':>7}  {'implementation':<16} {'ms':>8} {'GB/s':>7}  against torch_fused")
    for (threads, impl), values in sorted(seconds.items()):
        median = statistics.median(values)
        torch = statistics.median(seconds[threads, "torch_fused"])
        print(f"{threads:>7}  {impl:<16} {median * 1e3:8.2f} {28e-9 * args.params / median:7.2f}"
              f"  {torch / median:.2f}x")


if __name__ == "__main__":
    main()
