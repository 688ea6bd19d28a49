# SPDX-License-Identifier: Apache-2.0
"""Shared by cluster_slurm_test.py and cluster_mpi_test.py: a training run and its losses."""
import json
import pathlib
import time

from hosts import check

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARITY = ROOT / "test" / "data" / "parity_gpt"
CONFIG = ROOT / "configs" / "fsdp_hybrid_shard.yaml"
# As in training_test.cpp: four workers reach PyTorch's losses in these steps.
MODEL = ["--layers", "2", "--heads", "4", "--dim", "64", "--seq_len", "64", "--vocab", "256",
         "--lr", "1e-3", "--betas", "0.9,0.95", "--eps", "1e-8", "--weight_decay", "0.1",
         "--grad_clip", "1.0"]
GOLDEN = ["--batches", PARITY / "tokens.npy", "--init_from", PARITY / "init.safetensors", *MODEL]
STEPS = 20
# A run that is too long to end by itself.
ENDLESS = ["--data", ROOT / "docs", "--layers", "2", "--heads", "4", "--dim", "64", "--seq_len", "64",
           "--global_batch", "8", "--steps", "1000000", "--checkpoint_every", "1000000"]


def steps_in(metrics):
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().split("\n")[:-1]]  # whole lines


def check_losses(metrics, ranks, what):
    """Checks that each step was made once, by that many ranks, with the losses of one machine."""
    steps = steps_in(metrics)
    check([each["step"] for each in steps] == list(range(1, STEPS + 1)),
          f"{what}: made the steps {[each['step'] for each in steps]}")
    golden = json.loads((PARITY / "losses.json").read_text())["single_fp64"]["loss"]
    for each, loss in zip(steps, golden):
        check(len(each["ranks"]) == ranks, f"{what}: {len(each['ranks'])} ranks, expected {ranks}")
        error = abs(each["loss"] - loss)
        check(error <= 2e-5, f"{what}: step {each['step']}: its loss is off by {error}")


def report(what, since):
    print(f"{time.monotonic() - since:7.2f} s  {what}", flush=True)
