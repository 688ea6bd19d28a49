# SPDX-License-Identifier: Apache-2.0
"""Many more ranks on one machine than it has cores: train_gpt with FULL_SHARD, compared with FSDP2.

    python bench/scale.py [--bin build/release/bin] [--peers ../shared/peers] [--python PYTHON]
                          [--ranks 2,4,8,16,32,64] [--peer-ranks 2,4,8,16] [--rounds R] [--steps S]

PYTHON needs torch. Each rank has the same work, so the total tokens per second would be constant if
sharing the cores cost nothing. Results are medians over the rounds of each run's median step. Memory is
the sum of PSS over the workers; the workers of train_gpt share one copy of the weights. One FSDP2 rank
needs about 300 MB.
"""
import collections
import os
import pathlib
import statistics
import tempfile

import train
from names import BIN, PEERS, PYTHON, Options

MODEL = dict(layers=4, dim=128, heads=4, vocab=1024, seq_len=64, micro_batch=2)


def measure(args, folder):
    speeds, memory = collections.defaultdict(list), {}
    runs = [("train_gpt", ranks) for ranks in args.ranks] + [("fsdp2", ranks) for ranks in args.peer_ranks]
    for round_number in range(args.rounds):
        for impl, ranks in runs:
            case = dict(MODEL, workers=ranks)
            with_memory = round_number == 0
            if impl == "train_gpt":
                speed, peak = train.run_train_gpt(args, case, "full", "fp32", folder, with_memory)
            else:
                speed, peak = train.run_peer(args, case, impl, "full", "fp32", with_memory)
            speeds[impl, ranks].append(speed)
            memory[impl, ranks] = peak if with_memory else memory[impl, ranks]
    return {key: statistics.median(values) for key, values in speeds.items()}, memory


def report(args, speeds, memory):
    print(f"{len(os.sched_getaffinity(0))} cores; " + ", ".join(f"{k} {v}" for k, v in MODEL.items()))
    print(f"{'ranks':>5} {'train_gpt tokens/s':>19} {'of 2 ranks':>11} {'PSS MiB':>8}"
          f" {'fsdp2 tokens/s':>15} {'of 2 ranks':>11} {'PSS MiB':>8} {'train_gpt is':>13}")
    for ranks in args.ranks:
        ours = speeds["train_gpt", ranks]
        line = (f"{ranks:5} {ours:19.0f} {ours / speeds['train_gpt', args.ranks[0]]:11.2f}"
                f" {memory['train_gpt', ranks]:8.0f}")
        if ranks in args.peer_ranks:
            peer = speeds["fsdp2", ranks]
            line += (f" {peer:15.0f} {peer / speeds['fsdp2', args.peer_ranks[0]]:11.2f}"
                     f" {memory['fsdp2', ranks]:8.0f} {ours / peer:12.2f}x")
        print(line, flush=True)


def main():
    args = Options(__doc__, bin=BIN, peers=PEERS, python=PYTHON, ranks=[2, 4, 8, 16, 32, 64], peer_ranks=[2, 4, 8, 16],
                   rounds=1, steps=8).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        train.write_random_tokens(folder / "tokens.bin", MODEL["vocab"])
        report(args, *measure(args, folder))


if __name__ == "__main__":
    main()
