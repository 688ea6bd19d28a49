# SPDX-License-Identifier: Apache-2.0
"""Memory per rank of train_gpt on the CPU, by category, compared with the formulas of docs/sharding.md.

    python bench/memory.py [--bin build/release/bin] [--dtype fp32|bf16] [--strategies full,zero3,...] [--steps S]

Four ranks on one machine; each strategy plain, with the weights or the optimizer offloaded, and with two
micro-steps of which the first is under no_sync. A cell contains the MiB that rank 0 reports, the MiB of
the formula, and their ratio. On a CPU an offload changes nothing, because everything is in host memory.
In fp32 the gradients under no_sync are kept in buffers; in bf16 they are already freed when a step is
reported. A CPU without bf16 matrix products also keeps fp32 copies of weights; there is no formula for
that. PSS is the peak of the sum over the workers.
"""
import argparse
import json
import pathlib
import tempfile

import train
from names import some_of

RANKS = 4
MODEL = dict(layers=4, dim=256, heads=8, vocab=4096, seq_len=128, micro_batch=2)
CATEGORIES = ("parameter", "gradient", "optimizer", "gathered", "gradient_buffer")
FSDP = ["--use_fsdp", "--fsdp_sharding_strategy"]
ZERO = ["--use_deepspeed", "--zero_stage"]
OFFLOADED_FSDP = ["--fsdp_offload_params", "true"]
OFFLOADED_ZERO = ["--offload_optimizer_device", "cpu"]
HALVES = ["--parallelism_config_dp_shard_size", RANKS // 2]
# Flags; flags of an offload; number of ranks that share weights and gradients, and optimizer state;
# number of buffers of the largest unit's size that reductions need (DeepSpeed's overlap_comm is on
# for stage 3 only).
STRATEGIES = {
    "ddp": ([*FSDP, "NO_SHARD"], None, 1, 1, 0),
    "zero1": ([*ZERO, 1], OFFLOADED_ZERO, 1, RANKS, 0),
    "zero2": ([*ZERO, 2], OFFLOADED_ZERO, RANKS, RANKS, 1),
    "zero3": ([*ZERO, 3], [*OFFLOADED_ZERO, "--offload_param_device", "cpu"], RANKS, RANKS, 2),
    "grad_op": ([*FSDP, "SHARD_GRAD_OP"], OFFLOADED_FSDP, RANKS, RANKS, 2),
    "full": ([*FSDP, "FULL_SHARD"], OFFLOADED_FSDP, RANKS, RANKS, 2),
    "hybrid": ([*FSDP, "HYBRID_SHARD", *HALVES], OFFLOADED_FSDP, RANKS // 2, RANKS // 2, 2),
    "hybrid_2": ([*FSDP, "HYBRID_SHARD_ZERO2", *HALVES], OFFLOADED_FSDP, RANKS // 2, RANKS // 2, 2),
}


def sizes():
    """Returns numbers of elements: all, of the largest unit, of the root unit."""
    dim = MODEL["dim"]
    unit = 12 * dim * dim + 13 * dim
    root = (MODEL["vocab"] + MODEL["seq_len"]) * dim + 2 * dim
    return MODEL["layers"] * unit + root, unit, root


def formula(strategy, dtype, no_sync, widens):
    """Returns the expected bytes by category; None if there is no formula."""
    (*_, weights, optimizer, buffers), (p, unit, root) = STRATEGIES[strategy], sizes()
    mixed = dtype == "bf16"
    # With mixed precision, fp32 master weights belong to the optimizer state.
    held = {"parameter": 4 * p / (optimizer if mixed else weights), "gradient": 4 * p / weights,
            "optimizer": 8 * p / optimizer, "gathered": 0, "gradient_buffer": 0}
    if mixed:  # shared 16-bit copy; unsharded gradients are accumulated in fp32
        apart = 2 * (unit + (root if root > unit else 0)) if weights == 1 or no_sync else 0
        held["gathered"] = None if widens else 2 * p / weights + apart
    if buffers:
        waiting = p if no_sync and not mixed else min(p, buffers * unit + root)
        late = mixed and root <= unit  # the root's gradient comes last and reuses a unit's buffer
        held["gradient_buffer"] = (2 if mixed else 4) * (buffers * unit if late else waiting)
    return held


def measure(args, flags, options, dtype, folder):
    """Returns the last line of the metrics, and the peak of PSS in MiB."""
    metrics = folder / "metrics.jsonl"
    model = [word for key, value in MODEL.items() for word in (f"--{key}", value)]
    argv = [args.bin / "acclaunch", "--cpu", *flags, "--mixed_precision", train.PRECISIONS[dtype],
            "--num_processes", RANKS, "--num_cpu_threads_per_process", 1, "--main_process_port", 0,
            args.bin / "train_gpt", "--tokens", folder / "tokens.bin", "--metrics", metrics,
            "--steps", args.steps, *options, *model]
    _, peak = train.run(list(map(str, argv)), True, lambda code, _: code == 0)
    return json.loads(metrics.read_text().splitlines()[-1]), peak


def cell(found, expected):
    if not expected:
        return f"{found / 2**20:6.2f} " + ("     -     -" if expected is None else f"  0.00 {'':5}")
    return f"{found / 2**20:6.2f} {expected / 2**20:6.2f} {found / expected:4.2f}"


def variants(strategy):
    flags, offload, *_ = STRATEGIES[strategy]
    yield "", flags, []
    if offload is not None:
        yield "offload", [*flags, *offload], []
    yield "no_sync", [*flags, "--gradient_accumulation_steps", 2], ["--no_sync"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=train.ROOT / "build/release/bin")
    parser.add_argument("--dtype", choices=train.PRECISIONS, help="default: both")
    parser.add_argument("--strategies", default=list(STRATEGIES), type=some_of(STRATEGIES))
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    print(f"{RANKS} ranks; {', '.join(f'{k} {v}' for k, v in MODEL.items())}; {sizes()[0]} parameters")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        train.write_random_tokens(folder / "tokens.bin", MODEL["vocab"])
        for dtype in [args.dtype] if args.dtype else train.PRECISIONS:
            print(f"\n{dtype:<9}{'MiB':<8}" + "".join(f" | {each:<18}" for each in CATEGORIES) + " | PSS")
            for strategy in args.strategies:
                for name, flags, options in variants(strategy):
                    metrics, peak = measure(args, flags, options, dtype, folder)
                    expected = formula(strategy, dtype, name == "no_sync",
                                       dtype == "bf16" and metrics["compute_dtype"] == "float32")
                    cells = [cell(metrics["ranks"][0][f"{each}_bytes"], expected[each]) for each in CATEGORIES]
                    print(f"{strategy:<9}{name:<8}" + "".join(f" | {each:<18}" for each in cells)
                          + f" | {peak:.0f}", flush=True)


if __name__ == "__main__":
    main()
