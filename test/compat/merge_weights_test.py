# SPDX-License-Identifier: Apache-2.0
"""Compares the output of acclaunch's checkpoint commands with that of torch's and DeepSpeed's own tools.

    python merge_weights_test.py PART PATH/TO/acclaunch PATH/TO/checkpoints

PART: merge (Accelerate's merge-weights), zero (DeepSpeed's zero_to_fp32), travel (reshard and convert,
read by torch). Exits with 77 if a package is not installed.
"""
import json
import os
import subprocess
import sys
import tempfile

PART, ACCLAUNCH, DATA = sys.argv[1:]
try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    if PART == "merge":
        from accelerate.utils import merge_fsdp_weights
        from huggingface_hub import split_torch_state_dict_into_shards
    if PART != "merge":
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

FSDP = ["fsdp1_w4", "fsdp2_w4"]
ZERO = ["ds_zero2_w3", "ds_zero3_w3"]
MODEL, OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"


def acclaunch(*words):
    subprocess.run([ACCLAUNCH, *[str(word) for word in words]], check=True, stdout=subprocess.DEVNULL)


def loaded(path):
    return load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=True)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def check_equal(mine, theirs, where=""):
    """Compares names, types, dtypes, shapes and every bit."""
    if isinstance(theirs, torch.Tensor):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, where
        assert torch.equal(mine.contiguous().flatten().view(torch.uint8), theirs.contiguous().flatten().view(torch.uint8)), where
    elif isinstance(theirs, dict):
        assert sorted(map(str, mine)) == sorted(map(str, theirs)), f"{where}: {sorted(map(str, mine))} {sorted(map(str, theirs))}"
        for key, value in theirs.items():
            check_equal(mine[key], value, f"{where}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs), where
        for i, value in enumerate(theirs):
            check_equal(mine[i], value, f"{where}.{i}")
    else:
        assert mine == theirs, f"{where}: {mine}, expected {theirs}"


def check_shards(folder, full):
    """Reads a sharded set by its index, as transformers does. Its files must be those of Accelerate's save_model."""
    for size in ("20KB", "1KB", "10MB"):
        out = os.path.join(folder, size)
        acclaunch("merge-weights", os.path.join(DATA, "fsdp2_w4"), out, "--max_shard_size", size)
        plan = split_torch_state_dict_into_shards(dict(sorted(full.items())), max_shard_size=size,
                                                  filename_pattern="model{suffix}.safetensors")
        assert sorted(os.listdir(out)) == sorted(
            [*plan.filename_to_tensors] + ["model.safetensors.index.json"] * plan.is_sharded)
        for name, tensors in plan.filename_to_tensors.items():
            with safe_open(os.path.join(out, name), "pt") as file:
                assert sorted(file.keys()) == sorted(tensors), name
                assert file.metadata() == {"format": "pt"}
                for tensor in tensors:
                    check_equal(file.get_tensor(tensor), full[tensor], tensor)
        if plan.is_sharded:
            index = json.loads(content(os.path.join(out, "model.safetensors.index.json")))
            assert index["weight_map"] == plan.tensor_to_filename
            assert index["metadata"]["total_size"] == plan.metadata["total_size"]


def merge(folder):
    for name in FSDP:
        for part, flags, file in ((MODEL, [], "model.safetensors"),
                                  (MODEL, ["--unsafe_serialization"], "pytorch_model.bin"),
                                  (OPTIMIZER, ["--unsafe_serialization"], "pytorch_model.bin")):
            source = os.path.join(DATA, name, part)
            outs = [os.path.join(folder, f"{name}.{part}.{file}.{who}") for who in ("mine", "theirs")]
            acclaunch("merge-weights", source, outs[0], *flags)
            merge_fsdp_weights(source, outs[1], safe_serialization=not flags)
            assert os.listdir(outs[0]) == os.listdir(outs[1]) == [file]
            paths = [os.path.join(out, file) for out in outs]
            check_equal(*map(loaded, paths))
            if not flags:
                assert content(paths[0]) == content(paths[1]), "not the same file"
        above = os.path.join(folder, name + ".above")
        acclaunch("merge-weights", os.path.join(DATA, name), above)
        assert content(os.path.join(above, "model.safetensors")) == content(
            os.path.join(folder, f"{name}.{MODEL}.model.safetensors.theirs", "model.safetensors"))
    full = load_file(os.path.join(DATA, "fsdp2_w4", "model_full.safetensors"))
    for dtype, expected in (("bf16", torch.bfloat16), ("float16", torch.float16)):
        out = os.path.join(folder, dtype)
        acclaunch("merge-weights", os.path.join(DATA, "fsdp2_w4"), out, "--dtype", dtype)
        check_equal(load_file(os.path.join(out, "model.safetensors")),
                    {tensor: value.to(expected) for tensor, value in full.items()})
    check_shards(folder, full)


def zero(folder):
    for name in ZERO:
        source, out = os.path.join(DATA, name), os.path.join(folder, name)
        theirs = get_fp32_state_dict_from_zero_checkpoint(source)
        for path in (source, os.path.join(source, "global_step3")):
            acclaunch("merge-weights", path, out)
            check_equal(load_file(os.path.join(out, "model.safetensors")), theirs, name)
        acclaunch("merge-weights", source, out, "--unsafe-serialization")
        check_equal(loaded(os.path.join(out, "pytorch_model.bin")), theirs, name)


def as_torch_reads(folder, path):
    """Reads a DCP folder as nested dicts with torch's own converter."""
    out = os.path.join(folder, "read.pt")
    dcp_to_torch_save(path, out)
    return torch.load(out, weights_only=False)


def travel(folder):
    new_folder = iter(os.path.join(folder, str(i)) for i in range(100))
    for name in FSDP:
        source = os.path.join(DATA, name)
        wanted = {part: as_torch_reads(folder, os.path.join(source, part)) for part in (MODEL, OPTIMIZER)}
        for num_processes in (1, 3, 6):
            out = next(new_folder)
            acclaunch("reshard", source, out, "--num_processes", num_processes)
            for part in (MODEL, OPTIMIZER):
                check_equal(as_torch_reads(folder, os.path.join(out, part)), wanted[part], f"{name} {part}")
        # To DeepSpeed and back, with the optimizer.
        for stage, num_processes in ((1, 2), (2, 3), (3, 4)):
            zero_folder, back = next(new_folder), next(new_folder)
            acclaunch("convert", source, zero_folder, "--to", "deepspeed", "--zero_stage", stage,
                      "--num_processes", num_processes)
            check_equal(get_fp32_state_dict_from_zero_checkpoint(zero_folder), wanted[MODEL]["model"], name)
            acclaunch("convert", zero_folder, back, "--to", "dcp", "--num_processes", 2)
            check_equal(as_torch_reads(folder, os.path.join(back, MODEL)), wanted[MODEL], name)
            check_equal(as_torch_reads(folder, os.path.join(back, OPTIMIZER))["optimizer"]["state"],
                        wanted[OPTIMIZER]["optimizer"]["state"], name)
    for name in ZERO:
        source = os.path.join(DATA, name)
        wanted = get_fp32_state_dict_from_zero_checkpoint(source)
        out, other = next(new_folder), next(new_folder)
        acclaunch("convert", source, out, "--to", "dcp", "--num_processes", 4)
        check_equal(as_torch_reads(folder, os.path.join(out, MODEL)), {"model": wanted}, name)
        acclaunch("reshard", source, other, "--num_processes", 5)
        check_equal(get_fp32_state_dict_from_zero_checkpoint(other), wanted, name)


with tempfile.TemporaryDirectory() as scratch:
    {"merge": merge, "zero": zero, "travel": travel}[PART](scratch)
