# SPDX-License-Identifier: Apache-2.0
"""Memory per rank of train_gpt on the CPU, by category, compared with `acclaunch estimate-memory`.

    python bench/memory.py [--bin build/release/bin] [--dtype fp32|bf16] [--strategies full,zero3,...] [--steps S]

Four ranks on one machine; each strategy plain, with the weights or the optimizer offloaded, and with two
micro-steps of which the first is under no_sync. A cell contains the MiB that rank 0 reports, the MiB of
the estimate, and their ratio. On a CPU an offload changes nothing, because everything is in host memory.
In fp32 the gradients under no_sync are kept in buffers; in bf16 the estimate counts them, and they are
freed when a step is reported. PSS is the peak of the sum over the workers.
"""
import json
import pathlib
import re
import subprocess
import tempfile

import train
from names import BIN, Options, flags as words_of

RANKS = 4
MODEL = dict(layers=4, dim=256, heads=8, vocab=4096, seq_len=128, micro_batch=2)
CATEGORIES = ("parameter", "gradient", "optimizer", "gathered", "gradient_buffer")
FSDP = ["--use_fsdp", "--fsdp_sharding_strategy"]
ZERO = ["--use_deepspeed", "--zero_stage"]
OFFLOADED_FSDP = ["--fsdp_offload_params", "true"]
OFFLOADED_ZERO = ["--offload_optimizer_device", "cpu"]
HALVES = ["--parallelism_config_dp_shard_size", RANKS // 2]
# Flags; flags of an offload; the row of `acclaunch estimate-memory`, and the number of ranks that share a part.
STRATEGIES = {
    "ddp": ([*FSDP, "NO_SHARD"], None, "ZeRO 0, NO_SHARD", RANKS),
    "zero1": ([*ZERO, 1], OFFLOADED_ZERO, "ZeRO 1", RANKS),
    "zero2": ([*ZERO, 2], OFFLOADED_ZERO, "ZeRO 2", RANKS),
    "zero3": ([*ZERO, 3], [*OFFLOADED_ZERO, "--offload_param_device", "cpu"], "ZeRO 3", RANKS),
    "grad_op": ([*FSDP, "SHARD_GRAD_OP"], OFFLOADED_FSDP, "SHARD_GRAD_OP", RANKS),
    "full": ([*FSDP, "FULL_SHARD"], OFFLOADED_FSDP, "FULL_SHARD", RANKS),
    "hybrid": ([*FSDP, "HYBRID_SHARD", *HALVES], OFFLOADED_FSDP, "FULL_SHARD", RANKS // 2),
    "hybrid_2": ([*FSDP, "HYBRID_SHARD_ZERO2", *HALVES], OFFLOADED_FSDP, "SHARD_GRAD_OP", RANKS // 2),
}
UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB"))}


def estimate(args, strategy, dtype, no_sync, widens, folder):
    """Returns the bytes by category that `acclaunch estimate-memory` prints."""
    config = folder / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": MODEL["dim"], "n_layer": MODEL["layers"],
                                  "vocab_size": MODEL["vocab"], "n_positions": MODEL["seq_len"]}))
    *_, name, ranks = STRATEGIES[strategy]
    flags = [*["--no_sync"] * no_sync, *["--cpu_widens"] * widens]
    text = subprocess.run(
        [args.bin / "acclaunch", "estimate-memory", config, "--cpu", "--num_processes", str(ranks),
         "--mixed_precision", train.PRECISIONS[dtype], *flags],
        check=True, capture_output=True, text=True).stdout
    row = next(line for line in text.splitlines() if re.match(name + "  +none ", line))
    found = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (\w*B)\b", row)]
    return dict(zip(CATEGORIES, found))


def measure(args, flags, options, dtype, folder):
    """Returns the last line of the metrics, and the peak of PSS in MiB."""
    metrics = folder / "metrics.jsonl"
    argv = [args.bin / "acclaunch", "--cpu", *flags, "--mixed_precision", train.PRECISIONS[dtype],
            "--num_processes", RANKS, "--num_cpu_threads_per_process", 1, "--main_process_port", 0,
            args.bin / "train_gpt", "--tokens", folder / "tokens.bin", "--metrics", metrics,
            "--steps", args.steps, *options, *words_of(MODEL)]
    _, peak = train.run(list(map(str, argv)), True, lambda code, _: code == 0)
    return json.loads(metrics.read_text().splitlines()[-1]), peak


def cell(found, expected):
    if not expected:
        return f"{found / 2**20:6.2f}   0.00 {'':5}"
    return f"{found / 2**20:6.2f} {expected / 2**20:6.2f} {found / expected:4.2f}"


def variants(strategy):
    flags, offload, *_ = STRATEGIES[strategy]
    yield "", flags, []
    if offload is not None:
        yield "offload", [*flags, *offload], []
    yield "no_sync", [*flags, "--gradient_accumulation_steps", 2], ["--no_sync"]


def main():
    parser = Options(__doc__, bin=BIN, strategies=list(STRATEGIES), steps=8)
    parser.add_argument("--dtype", choices=train.PRECISIONS, help="default: both")
    args = parser.parse_args()
    print(f"{RANKS} ranks; {', '.join(f'{k} {v}' for k, v in MODEL.items())}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        train.write_random_tokens(folder / "tokens.bin", MODEL["vocab"])
        for dtype in [args.dtype] if args.dtype else train.PRECISIONS:
            print(f"\n{dtype:<9}{'MiB':<8}" + "".join(f" | {each:<18}" for each in CATEGORIES) + " | PSS")
            for strategy in args.strategies:
                for name, flags, options in variants(strategy):
                    metrics, peak = measure(args, flags, options, dtype, folder)
                    expected = estimate(args, strategy, dtype, name == "no_sync",
                                        dtype == "bf16" and metrics["compute_dtype"] == "float32", folder)
                    cells = [cell(metrics["ranks"][0][f"{each}_bytes"], expected[each]) for each in CATEGORIES]
                    print(f"{strategy:<9}{name:<8}" + "".join(f" | {each:<18}" for each in cells)
                          + f" | {peak:.0f}", flush=True)


if __name__ == "__main__":
    main()
