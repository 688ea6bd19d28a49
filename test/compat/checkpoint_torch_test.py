# SPDX-License-Identifier: Apache-2.0
"""Training that moves between libraries: checkpoint_torch_test.py ACCLAUNCH PROGRAM... The programs are train_gpt, and
train_torch, which has the same model. Each saves, and torch resumes from its folders, on one rank and sharded by
FSDP 2; torch's FSDP 2 saves, and each resumes. The losses must equal those of an uninterrupted run. Exits with 77
without torch."""

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

ACCLAUNCH, *PROGRAMS = sys.argv[1:]
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
                          stderr=subprocess.PIPE, text=True, timeout=900)
    assert done.returncode == 0, f"{launched}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fsdp(strategy, form="SHARDED_STATE_DICT"):
    return ["--use_fsdp", "--fsdp_sharding_strategy", strategy, "--fsdp_state_dict_type", form,
            "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
            "--fsdp_transformer_layer_cls_to_wrap", "Block"]


def train(program, folder, ranks, flags, last, *more):
    """Returns the losses of a program."""
    metrics = folder / f"metrics_{len(list(folder.iterdir()))}.jsonl"
    data = ["--batches", str(folder / "batches.npy")]
    if pathlib.Path(program).name == "train_torch":
        torch.save(torch.from_numpy(numpy.load(data[1])), folder / "tokens.pt")
        data = ["--tokens", str(folder / "tokens.pt"), "--lr", "3e-4", "--clip", "0"]
    run([program, *data, "--layers", str(LAYERS), "--heads", str(HEADS), "--dim", str(DIM), "--vocab",
         str(VOCAB), "--steps", str(last), "--metrics", str(metrics), *map(str, more)], ranks, *flags)
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


def torch_train(folder, ranks, loaded, *more):
    """Returns the losses of torch after it has resumed from each of these folders, which one job does."""
    loads = [word for each in loaded for word in ("--load", str(each))]
    output = run([WORKER, str(folder / "batches.npy"), str(SAVED), SIZES, *map(str, more), *loads], ranks,
                 "--preload", PRELOADED)
    losses = json.loads(re.search(r"\{.*\}", output)[0])  # after the prefix of its rank
    return [losses[str(each)] for each in loaded]


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


def save_unbroken(program, folder, strategy, ranks, *groups):
    """Trains, and once more until the checkpoint in `folder`. Returns the losses after it of the first training."""
    flags = [*fsdp(strategy), *groups]
    unbroken = train(program, folder.parent, ranks, flags, LAST)
    train(program, folder.parent, ranks, flags, SAVED, "--save", folder, "--export", f"{folder}.safetensors")
    expect_weights(folder, f"{folder}.safetensors")
    return unbroken[SAVED:]


def main(folder):
    two_by_two = ["--use_parallelism_config", "--parallelism_config_dp_replicate_size", "2",
                  "--parallelism_config_dp_shard_size", "2"]
    full, hybrid = {}, {}  # the programs' losses after their checkpoints, by folder
    for program in PROGRAMS:
        saved = folder / pathlib.Path(program).name
        full[f"{saved}_full"] = save_unbroken(program, pathlib.Path(f"{saved}_full"), "FULL_SHARD", 2)
        hybrid[f"{saved}_hybrid"] = save_unbroken(program, pathlib.Path(f"{saved}_hybrid"), "HYBRID_SHARD", 4,
                                                  *two_by_two)
    for ranks in (1, 3):
        for loaded, losses in zip(full, torch_train(folder, ranks, full)):
            expect_near(losses, full[loaded], f"torch on {ranks} ranks after {loaded}")
    saved = folder / "torch"
    unbroken, *found = torch_train(folder, 2, [saved, *hybrid], "--save", saved)
    for loaded, losses in zip(hybrid, found):
        expect_near(losses, hybrid[loaded], f"torch on 2 ranks after {loaded}")
    for program in PROGRAMS:
        for ranks, strategy in ((1, "NO_SHARD"), (4, "FULL_SHARD")):
            losses = train(program, folder, ranks, fsdp(strategy), LAST, "--resume", saved)
            expect_near(losses, unbroken, f"{program}, {strategy} on {ranks} after torch")


with tempfile.TemporaryDirectory() as name:
    make_batches(pathlib.Path(name))
    main(pathlib.Path(name))
