# SPDX-License-Identifier: Apache-2.0
"""Bytes that each strategy sends between machines, compared with its formula, and step times.

    python bench/wire.py [--bin build/release/bin] [--hosts 2,4,8] [--ranks R] [--mbit M] [--dtype fp32|bf16]
                         [--strategies full,grad_op,...] [--quantized]

Virtual machines (test/cluster) train a small GPT with R ranks each; every pair is connected by a link of M
Mbit/s in each direction. Bytes are counted at the network cards, with the headers of TCP and IP, per
machine and step: the difference between a long and a short run, divided by the difference of their steps.
The formulas count payload (docs/sharding.md), for P parameters of which the root unit has R, and H
machines. The ranks of a machine share gathered weights and reduce gradients before sending them, so a
machine sends (H-1)/H of the value in its column of the table. With --quantized, numbers are sent in 8 or 7 bits
(docs/sharding.md). "link" is the time that the bytes need on
the machine's links. Needs root.
"""
import json
import pathlib
import statistics
import sys
import tempfile

from gpu.check.formulas import block_parameters, gpt_parameters
from names import BIN, ROOT, Options, flags

sys.path.insert(0, str(ROOT / "test" / "cluster"))
import hosts  # noqa: E402

MODEL = {"layers": 4, "dim": 128, "heads": 4, "vocab": 512, "seq_len": 64}
SHORT, LONG = 3, 9
# Numbers of elements that are gathered and reduced between all machines, for p parameters of which
# the root unit has `root`.
FORMULAS = {
    "fsdp_full_shard": lambda p, root: (2 * p - root, p),
    "fsdp_shard_grad_op": lambda p, root: (p, p),
    "fsdp_no_shard": lambda p, root: (0, 2 * p),
    "fsdp_hybrid_shard": lambda p, root: (0, 2 * p),
    "fsdp_hybrid_shard_zero2": lambda p, root: (0, 2 * p),
    "zero1": lambda p, root: (p, p),
    "zero2": lambda p, root: (p, p),
}
WIDTHS = {"fp32": 4, "bf16": 2}
# Gradients of unsharded parameters, and of shards between replicas, are always reduced in float32.
REDUCES_FLOATS = {"fsdp_no_shard", "fsdp_hybrid_shard", "fsdp_hybrid_shard_zero2", "zero1"}


# With --quantized: blocks of 256 numbers in 8 or 7 bits and a scale of 4 bytes. What all ranks need the sum of is
# sent in 8 bits.
EIGHT_BITS, SEVEN_BITS = 260 / 256, 228 / 256
SENDS_SUMS = {"fsdp_no_shard", "fsdp_hybrid_shard", "fsdp_hybrid_shard_zero2"}
SENDS_WHOLE_WEIGHTS = {"fsdp_no_shard", "zero0", "zero1"}


def quantized_kinds(config):
    return ("gradients",) if config in SENDS_WHOLE_WEIGHTS else ("gradients", "weights")


def formula_bytes(args, config, count):
    """Returns the bytes that a machine sends per step. Weights and gradients have the dtype of the mode, but
    sums over a machine's ranks are float32."""
    gathered, reduced = FORMULAS[config](*sizes(MODEL))
    floats = args.ranks > 1 or config in REDUCES_FLOATS
    width, reduced_width = WIDTHS[args.dtype], 4 if floats else WIDTHS[args.dtype]
    if args.quantized:
        width = width if config in SENDS_WHOLE_WEIGHTS else EIGHT_BITS
        reduced_width = EIGHT_BITS if config in SENDS_SUMS else SEVEN_BITS
    return (gathered * width + reduced * reduced_width) * (count - 1) / count


def sizes(model):
    """Returns the parameters of a model and of its root unit."""
    parameters = gpt_parameters(model)
    return parameters, parameters - model["layers"] * block_parameters(model["dim"])


def sent_bytes(host):
    path = pathlib.Path(f"/proc/{host.init}/net/dev")
    line = next(line for line in path.read_text().splitlines() if "eth0:" in line)
    return int(line.split(":")[1].split()[8])


def train(args, cluster, count, config, steps, folder, port):
    """Returns the bytes that each machine sent, and the median step in seconds."""
    names = list(cluster.hosts)[:count]
    metrics = folder / f"{config}-{count}-{steps}.jsonl"
    before = [sent_bytes(cluster[name]) for name in names]
    running = [cluster[name].start(
        [args.bin / "acclaunch", "--config_file", ROOT / "configs" / f"{config}.yaml", "--cpu",
         "--mixed_precision", "bf16" if args.dtype == "bf16" else "no",
         "--num_machines", count, "--machine_rank", rank, "--num_processes", count * args.ranks,
         "--main_process_ip", cluster[names[0]].address, "--main_process_port", port,
         *(f"--quantized_{kind}" for kind in (quantized_kinds(config) if args.quantized else ())),
         "--num_cpu_threads_per_process", 1, args.bin / "train_gpt", "--tokens", folder / "tokens.bin",
         "--micro_batch", 1, "--steps", steps, "--metrics", metrics, *flags(MODEL)])
        for rank, name in enumerate(names)]
    for job in running:
        job.expect_status(0)
    after = [sent_bytes(cluster[name]) for name in names]
    seconds = [json.loads(line)["step_s"] for line in metrics.read_text().splitlines()]
    return [b - a for a, b in zip(before, after)], statistics.median(seconds[1:])


def measure(args, cluster, count, folder, port):
    p, root = sizes(MODEL)
    print(f"\n{count} hosts x {args.ranks} ranks, {args.dtype}, P {p}, root unit {root}, "
          f"{args.mbit} Mbit/s between two hosts")
    print(f"{'':<26} {'bytes/host/step':>16} {'formula':>12} {'ratio':>6} {'step':>9} {'link':>9}")
    for config in args.strategies:
        short, _ = train(args, cluster, count, config, SHORT, folder, next(port))
        long, seconds = train(args, cluster, count, config, LONG, folder, next(port))
        sent = statistics.mean(b - a for a, b in zip(short, long)) / (LONG - SHORT)
        formula = formula_bytes(args, config, count)
        link = sent * 8 / (args.mbit * 1e6) / (count - 1)
        print(f"{config:<26} {sent:16.0f} {formula:12.0f} {sent / formula:6.3f} {seconds * 1e3:6.0f} ms"
              f" {link * 1e3:6.0f} ms", flush=True)


def main():
    parser = Options(__doc__, bin=BIN, hosts=[2, 4, 8], ranks=2, mbit=500, quantized=False, strategies=list(FORMULAS))
    parser.add_argument("--dtype", choices=WIDTHS, default="fp32")
    args = parser.parse_args()
    if reason := hosts.why_impossible():
        sys.exit(reason)
    names = [f"node{number}" for number in range(max(args.hosts))]
    with tempfile.TemporaryDirectory() as temporary, hosts.Cluster(names) as cluster:
        folder = pathlib.Path(temporary)
        folder.joinpath("tokens.bin").write_bytes(bytes(n for value in range(256) for n in (value, 1)) * 512)
        for a in names:
            for b in names:
                if a < b:
                    cluster.rate(a, b, args.mbit * 1000)
        port = iter(range(29500, 29900))
        for count in args.hosts:
            measure(args, cluster, count, folder, port)


if __name__ == "__main__":
    main()
