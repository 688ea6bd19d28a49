# SPDX-License-Identifier: Apache-2.0
"""The same training of train_gpt in each mode of precision, with several learning rates and numbers of ranks
(docs/precision.md). Checks the reasons that the page gives, too: which weights were never changed.

    python bench/precision.py [--bin build/release/bin] [--out bench/results/precision.json] [--steps 500]

The data are a Markov chain that is made from a seed, so that the result does not depend on a file. All modes
begin with the same weights. Takes some minutes on two cores; `bench/figures.py` draws the result.
"""
import array
import datetime
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from names import BIN, ROOT, Options

# mode: configuration file, --mixed_precision, --dtype of the loaded weights, more flags of acclaunch
MODES = {
    "fp32": ("fsdp_full_shard", "no", "fp32", []),
    "low precision": ("fsdp_full_shard", "no", "bf16", []),
    "low precision, stochastic rounding": ("fsdp_full_shard", "no", "bf16", ["--stochastic_rounding"]),
    "FSDP mixed": ("fsdp_full_shard", "bf16", "fp32", []),
    "DeepSpeed": ("zero3", "bf16", "bf16", []),
}
RATES = (3e-5, 1e-4, 1e-3)
RANKS = (1, 2, 4)
VOCAB, SEQ = 64, 64
MODEL = ["--layers", 1, "--heads", 4, "--dim", 64, "--vocab", VOCAB, "--seq_len", SEQ, "--micro_batch", 4]
EVERY = 10  # steps whose mean loss is one point


def write_tokens(path, count):
    """A chain in which each pair of symbols has three likely successors."""
    source = random.Random(1)
    following = [[source.randrange(VOCAB) for _ in range(3)] for _ in range(VOCAB * VOCAB)]
    tokens = array.array("H", [0, 0])
    for _ in range(count):
        pair = tokens[-2] % 8 * VOCAB + tokens[-1]
        tokens.append(source.randrange(VOCAB) if source.random() < 0.1 else source.choice(following[pair]))
    path.write_bytes(tokens.tobytes())


def tensors_of(path):
    """{name: (dtype, bytes)} of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    return {name: (entry["dtype"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def share_unchanged(before, after):
    """Share of the elements that have the same bits in both files."""
    same = total = 0
    for name, (dtype, old) in tensors_of(before).items():
        new = tensors_of(after)[name][1]
        kind = {"F32": "I", "BF16": "H", "F16": "H"}[dtype]
        pairs = list(zip(array.array(kind, old), array.array(kind, new)))
        same += sum(first == second for first, second in pairs)
        total += len(pairs)
    return same / total


def train(args, folder, mode, rate, ranks, steps, export):
    config, mixed, dtype, flags = MODES[mode]
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    export.unlink(missing_ok=True)
    argv = [args.bin / "acclaunch", "--quiet", "--config_file", ROOT / "configs" / f"{config}.yaml", "--cpu",
            "--mixed_precision", mixed, "--num_processes", ranks, "--num_cpu_threads_per_process", 1,
            "--main_process_port", 0, *flags, args.bin / "train_gpt", "--tokens", folder / "tokens.bin", "--dtype",
            dtype, "--lr", rate, "--steps", steps, "--metrics", metrics, "--seed", 1, "--export", export, *MODEL]
    done = subprocess.run(list(map(str, argv)), env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    # Without a step there are no metrics.
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if steps else []
    losses = [line["loss"] for line in lines]
    return [[first + EVERY, round(sum(losses[first:first + EVERY]) / EVERY, 4)]
            for first in range(0, len(losses) - EVERY + 1, EVERY)], lines[-1].get("compute_dtype") if lines else None


def main():
    args = Options(__doc__, bin=BIN, out=ROOT / "bench/results/precision.json", steps=500).parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "tokens.bin", 400_000)
        for mode in MODES:
            initial = folder / "initial.safetensors"
            train(args, folder, mode, RATES[0], 1, 0, initial)
            for rate in RATES:
                for ranks in RANKS:
                    final = folder / "final.safetensors"
                    losses, compute = train(args, folder, mode, rate, ranks, args.steps, final)
                    runs.append({"mode": mode, "lr": rate, "ranks": ranks, "losses": losses, "compute_dtype": compute,
                                 "unchanged": round(share_unchanged(initial, final), 4)})
                    print(f"{mode}, lr {rate:g}, {ranks} ranks: loss {losses[-1][1]:.3f}, "
                          f"{100 * runs[-1]['unchanged']:.1f} % of the weights never changed", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    head = {"script": "bench/precision.py", "date": datetime.date.today().isoformat(),
            "model": " ".join(map(str, MODEL)), "steps": args.steps}
    # One line per run.
    args.out.write_text(json.dumps(head)[:-1] + ', "runs": [\n' + ",\n".join(map(json.dumps, runs)) + "\n]}\n")


if __name__ == "__main__":
    main()
