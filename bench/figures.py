# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documentation, docs/figures/*.svg, from the results recorded in bench/results.

    python bench/figures.py            needs no packages; the test `figures` fails if a picture is not up to date

bench/precision.py, bench/precision_experiment.py, bench/terminal.py and bench/train.py --record write their results; those
of bench/supervision.py are entered by hand, and those of several runs of bench/quantized.py --output put together.
"""
import argparse
import json
import pathlib
import sys

import charts

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, FIGURES = ROOT / "bench/results", ROOT / "docs/figures"
IMPLEMENTATIONS = {("train_gpt", "full"): "train_gpt", ("fsdp2", "full"): "PyTorch FSDP2", ("fsdp1", "full"): "PyTorch FSDP1",
                   ("ddp", "ddp"): "PyTorch DDP", ("alone", ""): "no communication"}
CASES = {"large": "23 M parameters, 2 workers", "small": "4 M parameters, 4 workers"}


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def train_speed():
    groups = {}
    for row in result("train"):
        name = IMPLEMENTATIONS.get((row["impl"], row["strategy"]))
        if name:
            groups.setdefault((row["case"], row["dtype"]), {})[name] = row["tokens_per_s"]
    return charts.bars("Tokens per second on two CPU cores, FULL_SHARD and DDP",
                       [(f"{CASES[case]}, {dtype}", {name: values[name] for name in IMPLEMENTATIONS.values()})
                        for (case, dtype), values in groups.items()], "", list(IMPLEMENTATIONS.values()))


def supervision():
    measured = result("supervision")
    return charts.bars("Two workers that do nothing", [
        ((what.rsplit(", ", 1)[0], what.rsplit(", ", 1)[1]), values)
        for what, values in measured.items() if isinstance(values, dict)], "")


def precision_losses():
    runs = result("precision")["runs"]
    rates, ranks = sorted({run["lr"] for run in runs}), sorted({run["ranks"] for run in runs})
    panels = [(f"{count} rank{'s' * (count > 1)}, learning rate {rate:g}",
               {run["mode"]: run["losses"] for run in runs if run["ranks"] == count and run["lr"] == rate})
              for count in ranks for rate in rates]
    return charts.lines("Loss by mode of precision", panels, len(rates), "optimizer step", "loss",
                        dashes=("fp32", "DeepSpeed"))


def precision_unchanged():
    runs = [run for run in result("precision")["runs"] if run["ranks"] == 1]
    groups = [(f"learning rate {rate:g}", {run["mode"]: round(100 * run["unchanged"], 1) for run in runs if run["lr"] == rate})
              for rate in sorted({run["lr"] for run in runs})]
    return charts.bars("Weights that have their initial value after all steps (1 rank)", groups, "%", top=100)


def precision_experiment_losses():
    return experiment_curves(1, "Loss of a Llama loaded in bf16", "loss")


def precision_experiment_norms():
    return experiment_curves(2, "Gradient norm of a Llama loaded in bf16", "norm")


def experiment_curves(column, title, label):
    curves = result("precision_experiment")["curves"]
    names = list(curves)
    panels = [(engine, {short: means([(point[0], point[column]) for point in curves[name]])
                        for short, name in zip(names[:3], chosen)})
              for engine, chosen in (("DeepSpeed and torch", names[:3]), ("engine acc", names[3:]))]
    return charts.lines(title, panels, 2, "optimizer step", label, dashes=names[:1])


def means(points, count=5):
    """The mean of each `count` points."""
    return [(points[first][0], sum(y for _, y in points[first:first + count]) / count)
            for first in range(0, len(points) - count + 1, count)]


def quantized_losses():
    losses = result("quantized")["losses"]
    return charts.lines("Loss with quantised and with exact communication", list(losses.items()), len(losses),
                        "optimizer step", "loss", dashes=("exact",))


def top():
    return terminal("acclaunch top: a job with four ranks", "top")


def report():
    return terminal("Report of a job whose rank 2 was killed", "report")


def terminal(title, name):
    shown = result("terminal")[name]
    return charts.terminal(title, shown["command"], shown["lines"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare the pictures in docs/figures")
    args = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    stale = []
    for draw in (train_speed, supervision, precision_losses, precision_unchanged,
                 precision_experiment_losses, precision_experiment_norms, quantized_losses, top, report):
        path, picture = FIGURES / f"{draw.__name__}.svg", draw()
        if args.check:
            if not path.exists() or path.read_text() != picture:
                stale.append(str(path.relative_to(ROOT)))
        else:
            path.write_text(picture)
    if stale:
        sys.exit(f"not what bench/figures.py draws from bench/results: {', '.join(stale)}")


if __name__ == "__main__":
    main()
