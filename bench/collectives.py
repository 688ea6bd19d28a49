# SPDX-License-Identifier: Apache-2.0
"""all_gather, reduce_scatter and all_reduce on one machine, compared with torch's Gloo, interleaved in one run.

    python bench/collectives.py [--bin build/release/bin] [--peers ../shared/peers] [--python PYTHON]
                                [--workers 2,4] [--from-bytes N] [--to-bytes N] [--rounds R]

PYTHON needs torch; PEERS contains gloo_bench.py. Prints the medians over the rounds and the speed
relative to Gloo: "group" is memory that the process group allocated (the runtime uses this), "private"
is any other memory, as with Gloo.
"""
import collections
import statistics

from launchers import json_lines
from names import BIN, PEERS, PYTHON, Options


def main():
    args = Options(__doc__, bin=BIN, peers=PEERS, python=PYTHON, workers=[2, 4], from_bytes=1 << 20, to_bytes=64 << 20,
                   rounds=3).parse_args()

    times = collections.defaultdict(list)
    for workers in args.workers:
        for _ in range(args.rounds):
            ours = [args.bin / "acclaunch", "--cpu", "--num_processes", workers,
                    args.bin / "collectives_bench", args.from_bytes, args.to_bytes, "0.5"]
            gloo = [args.python, "-m", "torch.distributed.run", "--nproc-per-node", workers,
                    args.peers / "gloo_bench.py", "--from-bytes", args.from_bytes,
                    "--to-bytes", args.to_bytes, "--budget-s", "0.5"]
            for row in json_lines(ours) + json_lines(gloo):
                key = row["world"], row["bytes"], row["op"], row.get("memory", "gloo")
                times[key].append(row["median_us"])

    print(f"{'ranks':>5} {'MiB':>6} {'collective':<15} {'Gloo ms':>9} {'group ms':>9} {'ratio':>7}"
          f" {'private ms':>11} {'ratio':>7}")
    for world, nbytes, op in sorted({key[:3] for key in times}):
        gloo, group, private = (statistics.median(times[world, nbytes, op, memory]) / 1e3
                                for memory in ("gloo", "group", "private"))
        print(f"{world:>5} {nbytes / 2**20:>6.0f} {op:<15} {gloo:>9.2f} {group:>9.2f}"
              f" {gloo / group:>6.1f}x {private:>11.2f} {gloo / private:>6.1f}x")


if __name__ == "__main__":
    main()
