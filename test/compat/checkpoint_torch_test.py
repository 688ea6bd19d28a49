# SPDX-License-Identifier: Apache-2.0
"""Training that moves between libraries: checkpoint_torch_test.py ACCLAUNCH PROGRAM. PROGRAM is train_gpt, or
train_torch, which has the same model; it is called train_gpt here. train_gpt saves, and torch resumes from its folders, on one rank and sharded by FSDP 2; torch's FSDP 2 saves, and
train_gpt resumes. The losses must equal those of an uninterrupted run. Exits with 77 without torch."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ACCLAUNCH, TRAIN_GPT = sys.argv[1:]
WORKER = str(pathlib.Path(__file__).resolve().parent / "workers" / "torch_gpt.py")
LAYERS, DIM, HEADS, VOCAB, POSITIONS, ROWS = 2, 32, 4, 50, 17, 12
SIZES = f"{LAYERS},{DIM},{HEADS},{VOCAB}"
SAVED, LAST = 3, 6
TOLERANCE = 2e-5  # tolerance of a loss, as in the parity tests


# What the workers of torch import, once for all ranks of a job; an optimizer's first step needs torch._dynamo.
PRELOADED = "numpy,torch._dynamo,torch.distributed.fsdp,torch.distributed.checkpoint.state_dict"


def run(command, ranks, *flags):
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
    launched = [ACCLAUNCH, "--cpu", "--num_processes", str(ranks), *flags, *command]
    done = subprocess.run(launched, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 0, f"{launched}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fsdp(strategy, form="SHARDED_STATE_DICT"):
    return ["--use_fsdp", "--fsdp_sharding_strategy", strategy, "--fsdp_state_dict_type", form,
            "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
            "--fsdp_transformer_layer_cls_to_wrap", "Block"]


def train(folder, ranks, flags, last, *more):
    """Returns the losses of train_gpt."""
    metrics = folder / f"metrics_{len(list(folder.iterdir()))}.jsonl"
    data = ["--batches", str(folder / "batches.npy")]
    if pathlib.Path(TRAIN_GPT).name == "train_torch":
        torch.save(torch.from_numpy(numpy.load(data[1])), folder / "tokens.pt")
        data = ["--tokens", str(folder / "tokens.pt"), "--lr", "3e-4", "--clip", "0"]
    run([TRAIN_GPT, *data, "--layers", str(LAYERS), "--heads", str(HEADS), "--dim", str(DIM), "--vocab", str(VOCAB), "--steps", str(last), "--metrics",
         str(metrics), *map(str, more)], ranks, *flags)
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


def torch_train(folder, ranks, first, last, *more):
    output = run([WORKER, str(folder / "batches.npy"), str(first), str(last), SIZES,
                  *map(str, more)], ranks, "--preload", PRELOADED)
    return json.loads(re.search(r"\{.*\}", output)[0])["losses"]  # after the prefix of its rank


def expect_near(found, expected, what):
    assert len(found) == len(expected), (what, found, expected)
    for a, b in zip(found, expected):
        assert abs(a - b) < TOLERANCE, (what, found, expected)


def make_batches(folder):
    generator = numpy.random.default_rng(5)
    shape = (LAST, ROWS, POSITIONS + 1)
    numpy.save(folder / "batches.npy", generator.integers(0, VOCAB, shape, dtype=numpy.int32))


def expect_weights(saved, exported):
    """Loads the model's folder into plain tensors with torch; they must equal the exported weights."""
    expected = load_file(exported)
    found = {"model": {name: torch.full_like(value, -1.0) for name, value in expected.items()}}
    dcp.load(found, checkpoint_id=str(saved / "pytorch_model_fsdp_0"), no_dist=True)
    assert "lm_head.weight" in expected
    for name, value in expected.items():
        assert torch.equal(found["model"][name], value), name


def test_torch_resumes(folder):
    two_by_two = ["--use_parallelism_config", "--parallelism_config_dp_replicate_size", "2",
                  "--parallelism_config_dp_shard_size", "2"]
    for ranks, strategy, groups, readers in ((2, "FULL_SHARD", [], (1, 3)),
                                             (4, "HYBRID_SHARD", two_by_two, (2,))):
        flags = fsdp(strategy) + groups
        saved = folder / f"ours_{ranks}"
        unbroken = train(folder, ranks, flags, LAST)
        train(folder, ranks, flags, SAVED, "--save", saved, "--export", f"{saved}.safetensors")
        expect_weights(saved, f"{saved}.safetensors")
        for reader in readers:
            losses = torch_train(folder, reader, SAVED, LAST, "--load", saved)
            expect_near(losses, unbroken[SAVED:], f"torch on {reader} after {strategy}")


def test_train_gpt_resumes(folder):
    saved = folder / "torch"
    torch_train(folder, 2, 0, SAVED, "--save", saved)
    unbroken = torch_train(folder, 2, SAVED, LAST, "--load", saved)
    for ranks, strategy in ((1, "NO_SHARD"), (4, "FULL_SHARD")):
        losses = train(folder, ranks, fsdp(strategy), LAST, "--resume", saved)
        expect_near(losses, unbroken, f"{strategy} on {ranks} after torch")


with tempfile.TemporaryDirectory() as name:
    make_batches(pathlib.Path(name))
    test_torch_resumes(pathlib.Path(name))
    test_train_gpt_resumes(pathlib.Path(name))
