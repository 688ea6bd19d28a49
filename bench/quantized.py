# SPDX-License-Identifier: Apache-2.0
"""Losses of train_gpt with weights and gradients that are sent to other machines in 8 and 7 bits, and as they are.

    python bench/quantized.py [--bin build/release/bin] [--data FILE] [--steps 2000] [--every 100] [--machines 2]
                              [--ranks R] [--strategies full,ddp] [--model 4M|1M] [--dtype fp32|bf16] [--micro_batch 1]
                              [--output NAME] [--limit 0.1]

Machines are launchers on this machine, which exchange over TCP. All runs begin with the same weights and read the same
text: FILE, by default the documents of this project. The run `perturbed` is exact with a learning rate that is larger by
1e-4 of its value: how far two exact runs are apart. A point is the mean loss of --every steps. NAME.json and NAME.svg
get the curves, after each strategy. Exits with 1 if a last point differs from that of the first run by more than --limit
percent.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import charts
import train
from names import BIN, ROOT, Options, flags, some_of

sys.path.insert(0, str(ROOT / "test" / "support"))
import ports  # noqa: E402

MODELS = {"4M": {"layers": 5, "heads": 8, "dim": 256}, "1M": {"layers": 4, "heads": 4, "dim": 144}}
RUNS = {"exact": (), "quantized": ("weights", "gradients"), "weights only": ("weights",),
        "gradients only": ("gradients",), "perturbed": ("perturbed",)}


def losses(args, folder, strategy, kinds):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    port = ports.reserved_port()
    running = [subprocess.Popen(list(map(str, [
        args.bin / "acclaunch", "--quiet", "--config_file", ROOT / "configs" / f"{train.CONFIGS[strategy]}.yaml",
        "--cpu", "--mixed_precision", train.PRECISIONS[args.dtype], "--num_machines", args.machines,
        "--machine_rank", rank, "--num_processes", args.machines * args.ranks, "--main_process_ip", "127.0.0.1",
        "--main_process_port", port, "--num_cpu_threads_per_process", 1,
        *(f"--quantized_{kind}" for kind in kinds if kind != "perturbed"), args.bin / "train_gpt",
        "--data", folder / "text", "--steps", args.steps, "--metrics", metrics, "--seed", 1,
        "--lr", args.lr * (1 + 1e-4 * ("perturbed" in kinds)), "--grad_clip", 1,
        "--micro_batch", args.micro_batch, "--seq_len", 128, *flags(MODELS[args.model])])),
        env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL) for rank in range(args.machines)]
    if any([process.wait() for process in running]):
        sys.exit(f"{strategy}, {kinds}: failed")
    found = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    return [sum(found[first:first + args.every]) / args.every for first in range(0, len(found), args.every)]


def write_curves(args, all_curves):
    """all_curves: by strategy and run, the points."""
    points = {strategy: {run: [[(i + 1) * args.every, loss] for i, loss in enumerate(curve)]
                         for run, curve in curves.items()} for strategy, curves in all_curves.items()}
    settings = {name: getattr(args, name) for name in ("model", "dtype", "machines", "ranks", "steps", "every", "lr",
                                                       "micro_batch")}
    pathlib.Path(f"{args.output}.json").write_text(json.dumps({"settings": settings, "losses": points}, indent=1) + "\n")
    pathlib.Path(f"{args.output}.svg").write_text(charts.lines(
        "Loss with quantised and with exact communication", list(points.items()), len(points), "optimizer step", "loss",
        dashes=("exact",)))


def main():
    parser = Options(__doc__, bin=BIN, steps=2000, every=100, machines=2, ranks=1, micro_batch=1, lr=3e-4,
                     limit=float("inf"))
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--strategies", default=["full", "ddp"], type=some_of(train.CONFIGS))
    parser.add_argument("--runs", default=["exact", "quantized"], type=some_of(RUNS))
    parser.add_argument("--model", choices=MODELS, default="4M")
    parser.add_argument("--dtype", choices=train.PRECISIONS, default="fp32")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if args.steps % args.every:
        parser.error(f"--steps {args.steps}: expected a multiple of --every {args.every}")
    if args.output and (args.steps == args.every or not args.output.absolute().parent.is_dir()):
        parser.error(f"--output {args.output}: expected a file in a folder that exists, and several points")
    all_curves, is_close = {}, True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        texts = [args.data] if args.data else sorted((ROOT / "docs").glob("*.md"))
        folder.joinpath("text").write_bytes(b"".join(path.read_bytes() for path in texts))
        for strategy in args.strategies:
            kinds = {run: tuple(kind for kind in RUNS[run] if kind != "weights" or strategy != "ddp")
                     for run in args.runs}
            curves = {run: losses(args, folder, strategy, kinds[run]) for run in args.runs}
            print(f"{strategy}, {args.model}, {args.dtype}, {args.machines} machines x {args.ranks} ranks, "
                  f"{args.steps} steps\n{'steps':>8}" + "".join(f"{run:>16}" for run in curves))
            for i, point in enumerate(zip(*curves.values())):
                print(f"{(i + 1) * args.every:8}" + "".join(f"{loss:16.4f}" for loss in point), flush=True)
            first, *others = (curve[-1] for curve in curves.values())
            percents = [100 * (loss / first - 1) for loss in others]
            print("last, relative to the first: " + ", ".join(f"{each:+.3f} %" for each in percents), flush=True)
            is_close &= all(abs(each) <= args.limit for each in percents)  # NaN is not
            all_curves[strategy] = curves
            if args.output:
                write_curves(args, all_curves)
    return 0 if is_close else f"a loss differs by more than {args.limit} %"


if __name__ == "__main__":
    sys.exit(main())
