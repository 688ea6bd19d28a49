# SPDX-License-Identifier: Apache-2.0
"""The fused AdamW update against torch.optim.AdamW(fused=True) and DeepSpeed's CPUAdam, interleaved.

    python bench/adamw.py [--bin build/release/bin/adamw_bench] --peer PEER.py [--python PYTHON]
                          [--deepspeed] [--rounds R]

PEER.py prints lines of JSON in the format of adamw_bench. It runs with PYTHON, which needs torch, and
with --deepspeed a DeepSpeed whose C++ extension can be built. Prints for each implementation the median
over the rounds of each round's median and the ratio to torch; for acclaunch also its rate divided by the
rate of a loop that only adds over the same arrays.
"""
import collections
import statistics

from launchers import json_lines
from names import PYTHON, Options


def main():
    parser = Options(__doc__, bin="build/release/bin/adamw_bench", python=PYTHON, params=32 << 20, threads="1,2",
                     deepspeed=False, rounds=3)
    parser.add_argument("--peer", required=True)
    args = parser.parse_args()

    seconds, of_streams = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(args.rounds):
        ours = [args.bin, args.params, args.threads]
        peer = [args.python, args.peer, "--params", args.params, "--threads", args.threads]
        peer += ["--deepspeed"] * args.deepspeed
        for row in json_lines(ours) + json_lines(peer):
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
