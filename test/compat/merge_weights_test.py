# SPDX-License-Identifier: Apache-2.0
"""Compares the output of acclaunch's checkpoint commands with that of torch's and DeepSpeed's own tools.

    python merge_weights_test.py PART,... PATH/TO/acclaunch PATH/TO/checkpoints

PART: merge (Accelerate's merge-weights), zero (DeepSpeed's zero_to_fp32), travel (reshard and convert,
read by torch), odd (dtypes, strides and classes that few files have), shared (names of one tensor).
Exits with 77 if a package other than DeepSpeed is not installed.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

PARTS, ACCLAUNCH, DATA = sys.argv[1:]
try:
    import numpy as np
    import torch
    from safetensors import safe_open
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, load_model, save_model
    from torch import nn
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from accelerate.utils import merge_fsdp_weights
    from huggingface_hub import save_torch_model, split_torch_state_dict_into_shards
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
try:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
except ImportError:
    get_fp32_state_dict_from_zero_checkpoint = None

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


def said(*words):
    """Exit status and output of a command that may fail."""
    made = subprocess.run([ACCLAUNCH, *words], capture_output=True, text=True)
    return made.returncode, made.stdout + made.stderr


def as_bits(count, dtype):
    return torch.arange(count * dtype.itemsize, dtype=torch.uint8).view(dtype)


ODD_TENSORS = {
    **{str(dtype).removeprefix("torch."): as_bits(6, dtype) for dtype in (
        torch.complex64, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
        torch.float4_e2m1fn_x2, torch.uint16, torch.uint32, torch.uint64)},
    "bool": torch.tensor([True, False]),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "turned": torch.randn(300, 500).t(),
    "turned brain floats": torch.randn(7, 5).bfloat16().t(),
}
NOT_IN_SAFETENSORS = {"complex128": as_bits(3, torch.complex128), "complex32": as_bits(3, torch.complex32)}
FILE_ONLY = {"every second": torch.arange(20.0)[1::2], "repeated": torch.arange(3.0).expand(4, 3)}


def check_sound(path):
    code, text = said("verify", path)
    assert code == 0 and "nothing is damaged" in text and "cannot be read" not in text, text
    assert said("inspect", path)[0] == 0


def check_odd_folder(folder, name, tensor):
    source = os.path.join(folder, name)
    dcp.save({"model": {"weight": torch.ones(3), "odd": tensor}}, checkpoint_id=source)
    check_sound(source)
    in_safetensors = name in ODD_TENSORS
    outs = [f"{source}.{who}" for who in ("mine", "theirs")]
    if in_safetensors:
        acclaunch("merge-weights", source, outs[0])
        merge_fsdp_weights(source, outs[1], safe_serialization=True)
        assert content(f"{outs[0]}/model.safetensors") == content(f"{outs[1]}/model.safetensors"), name
        check_sound(f"{outs[0]}/model.safetensors")
        acclaunch("convert", outs[0], f"{source}.bin", "--to", "bin")
    else:
        code, text = said("merge-weights", source, outs[0])
        assert code == 2 and name in text and "no such dtype" in text and not os.path.exists(outs[0]), text
        acclaunch("merge-weights", source, f"{source}.bin", "--unsafe_serialization")
    check_equal(loaded(f"{source}.bin/pytorch_model.bin")["odd"], tensor, name)
    code, text = said("convert", source, f"{source}.half", "--to", "bin", "--dtype", "float16")
    converts = tensor.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    keeps = not converts and (tensor.is_floating_point() or tensor.is_complex())
    assert code == 0 and (f"odd as float16 (it stays {str(tensor.dtype)[6:]})" in text) == keeps, text
    acclaunch("convert", source, f"{source}.dcp", "--to", "dcp", "--num_processes", 2)
    acclaunch("reshard", source, f"{source}.two", "--num_processes", 2)
    for out in ("dcp", "two"):
        check_equal(as_torch_reads(folder, f"{source}.{out}")["model"]["odd"], tensor, name)


def check_unreadable(path, reason):
    """A file that is sound, and damaged when a byte of its tensor changes."""
    code, text = said("verify", path)
    assert code == 0 and "cannot be read here" in text and reason in text, text
    code, text = said("inspect", path)
    assert code == 2 and reason in text and "may be sound" in text, text
    bytes_of = bytearray(content(path))
    at = bytes_of.find(torch.full((64,), 7.0).numpy().tobytes())
    if at > 0:
        bytes_of[at] ^= 1
        with open(path, "wb") as file:
            file.write(bytes_of)
        code, text = said("verify", path)
        assert code == 1 and "is damaged: its checksum" in text, text


def odd(folder):
    for name, tensor in {**ODD_TENSORS, **NOT_IN_SAFETENSORS}.items():
        check_odd_folder(folder, name, tensor)
    path = os.path.join(folder, "all.pt")
    tensors = {**ODD_TENSORS, **NOT_IN_SAFETENSORS, **FILE_ONLY}
    torch.save(tensors, path)
    check_sound(path)
    acclaunch("convert", path, os.path.join(folder, "all"), "--to", "bin")
    check_equal(loaded(os.path.join(folder, "all", "pytorch_model.bin")), tensors)

    weight, cycle = torch.full((64,), 7.0), []
    cycle.append(cycle)
    for name, value, reason in (
            ("class", {"w": weight, "config": argparse.Namespace(a=1)}, "argparse.Namespace"),
            ("quantized", {"w": weight, "q": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)},
             "_rebuild_qtensor"),
            ("sparse", {"w": weight, "s": torch.eye(3).to_sparse()}, "_rebuild_sparse_tensor"),
            ("nested", {"model": {"w": weight}, "epoch": 3}, "must be a tensor"),
            ("cycle", {"w": weight, "x._extra_state": cycle}, "a value that contains itself"),
            ("integer", {"w": weight, "x._extra_state": np.random.default_rng().bit_generator.state}, "64 bits"),
            ("pair as key", {(1, 2): weight}, "the key a tuple of 2"),
            ("two keys of one name", {1: weight, "1": weight}, "tensor '1' (param) occurs twice"),
            ("step", {"state": {"w": {"step": [1], "exp_avg": weight}}, "param_groups": [{"params": ["w"]}]},
             "must be a number"),
            ("state of no parameter", {"state": {0: {"exp_avg": weight}, "k": {}}, "param_groups": [{"params": [0]}]},
             "in no group")):
        path = os.path.join(folder, name + ".pt")
        torch.save(value, path)
        check_unreadable(path, reason)
    torch.save({"w": weight}, os.path.join(folder, "old.pt"), _use_new_zipfile_serialization=False)
    code, text = said("verify", os.path.join(folder, "old.pt"))
    assert code == 0 and "older form without zip" in text, text
    check_others(folder)
    check_left_out(folder)
    check_targets(folder)


def check_left_out(folder):
    """What a conversion leaves out is said, and what it cannot keep is refused, without an output."""
    one, two = torch.ones(3), torch.zeros(3)
    for source, state in (("values", {"model": {"w": one}, "epoch": 3, "names": ["a"]}),
                          ("more tensors", {"model": {"w": one}, "ema": {"w": two}}),
                          ("one name", {"model": {"w": one}, "w": two}),
                          ("no tensors", {"epoch": 3}),
                          ("metadata", {"__metadata__": one})):
        dcp.save(state, checkpoint_id=os.path.join(folder, source))
    torch.save({"w": one, "x._extra_state": collections.deque([1]), "none": None}, os.path.join(folder, "values.pt"))
    net = nn.Linear(3, 3)
    for source, number in (("two models", "_1"), ("no state", "")):
        os.mkdir(os.path.join(folder, source))
        torch.save(net.state_dict(), os.path.join(folder, source, "pytorch_model.bin"))
        torch.save(net.state_dict(), os.path.join(folder, source, f"pytorch_model{number}.bin"))
        torch.save(torch.optim.SGD(net.parameters()).state_dict(), os.path.join(folder, source, "optimizer.bin"))
    for source, to, status, text in (("values", "bin", 0, "left out: epoch, names"),
                                     ("values", "safetensors", 0, "left out: epoch, names"),
                                     ("values.pt", "dcp", 0, "left out: x._extra_state, none"),
                                     ("more tensors", "bin", 0, "converted 2 tensors"),
                                     ("more tensors", "deepspeed", 0, "converted 2 tensors"),
                                     *[("one name", to, 2, "'model.w' and 'w' would both be 'w'")
                                       for to in ("bin", "safetensors", "dcp", "deepspeed")],
                                     *[("no tensors", to, 2, "has no tensors to convert")
                                       for to in ("bin", "safetensors", "dcp", "deepspeed")],
                                     ("metadata", "safetensors", 2, "cannot write tensor '__metadata__'"),
                                     ("two models", "bin", 0, "two models/pytorch_model_1.bin"),
                                     ("no state", "dcp", 0, "left out: the settings of the optimizer")):
        out = os.path.join(folder, f"{source} in {to}")
        code, found = said("convert", os.path.join(folder, source), out, "--to", to)
        assert code == status and text in found and os.path.exists(out) == (status == 0), (source, to, code, found)
    code, found = said("convert", os.path.join(folder, "two models"), os.path.join(folder, "two models", "inside"),
                       "--to", "bin")
    assert code == 0 and "pytorch_model_1.bin" in found and "two models/inside," not in found, found


def check_targets(folder):
    """A conversion replaces a file only with --overwrite, and never what it reads."""
    source = os.path.join(folder, "half.pt")
    torch.save({"w": torch.ones(3)}, source)
    for to, file in (("bin", "pytorch_model.bin"), ("safetensors", "model.safetensors")):
        words = ["convert", source, os.path.join(folder, "target"), "--to", to]
        assert said(*words)[0] == 0
        code, text = said(*words)
        assert code == 2 and f"{file} already exists" in text, text
        assert said(*words, "--overwrite")[0] == 0
        target = os.path.join(folder, "target", file)
        before = content(target)
        for command in (["convert", "--to", to, "--overwrite", "--dtype", "fp16"],
                        ["merge-weights", "--dtype", "fp16", *(["--unsafe_serialization"] if to == "bin" else [])]):
            code, text = said(command[0], target, os.path.dirname(target), *command[1:])
            assert code == 2 and "is read, and would be replaced" in text and content(target) == before, text
    code, text = said("verify", "")
    assert code == 2 and "PATH is empty" in text.replace(":", ""), text


def check_others(folder):
    """Files of a program in a save folder: any classes, other formats under an ending of torch's."""
    source = os.path.join(folder, "state")
    os.mkdir(source)
    torch.save({"w": torch.ones(3)}, os.path.join(source, "pytorch_model.bin"))
    torch.save({"x": argparse.Namespace(a=1)}, os.path.join(source, "custom_checkpoint_0.pkl"))
    check_sound(source)
    for scheduler in ({"_schedulers": []}, {"last_epoch": 3, "anneal": argparse.Namespace(a=1)}):
        torch.save(scheduler, os.path.join(source, "scheduler.bin"))
        check_sound(source)
        assert json.loads(said("inspect", source, "--json")[1])["step"] is None
    with open(os.path.join(source, "vocabulary.bin"), "wb") as file:
        file.write(b"words of a tokenizer")
    code, text = said("verify", source)
    assert code == 0 and "vocabulary.bin: is no archive of torch.save" in text, text
    with open(os.path.join(source, "scheduler.bin"), "wb") as file:
        file.write(b"not what torch.save writes")
    code, text = said("verify", source)
    assert code == 1 and "scheduler.bin" in text, text


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def check_tied(path, expected):
    """All names can be loaded strictly, from one storage in a .bin file."""
    net = Tied()
    for file in os.listdir(path):
        if file.endswith(".bin"):
            state = torch.load(os.path.join(path, file))
            net.load_state_dict(state)
            assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
            assert len(content(os.path.join(path, file))) < 2600
    if "model.safetensors" in os.listdir(path):
        load_model(net, os.path.join(path, "model.safetensors"))
        with safe_open(os.path.join(path, "model.safetensors"), "pt") as file:
            assert file.metadata() in ({"format": "pt", "head.weight": "embed.weight"},
                                       {"format": "pt", "embed.weight": "head.weight"}), file.metadata()
    code, text = said("inspect", path, "--json")
    found = json.loads(text)
    assert sorted(each["name"] for each in found["tensors"]) == sorted(expected), text
    assert sum(each["same_as"] is not None for each in found["tensors"]) == 1, text
    assert found["total_bytes"] == 4 * (28 + 16 + 4), text


def shared(folder):
    torch.manual_seed(1)
    net = Tied()
    expected = net.state_dict()
    sources = {name: os.path.join(folder, name) for name in ("one", "set", "bin")}
    for source in sources.values():
        os.mkdir(source)
    save_model(net, os.path.join(sources["one"], "model.safetensors"), metadata={"format": "pt"})
    save_torch_model(net, sources["set"], max_shard_size=70)
    assert len(os.listdir(sources["set"])) > 2
    torch.save(expected, os.path.join(sources["bin"], "pytorch_model.bin"))
    for name, source in sources.items():
        for words in (["convert", "--to", "safetensors"], ["convert", "--to", "bin"], ["merge-weights"],
                      ["merge-weights", "--unsafe_serialization"]):
            out = os.path.join(folder, f"{name}.{'_'.join(words)}")
            acclaunch(words[0], source, out, *words[1:])
            check_tied(out, expected)
        out = os.path.join(folder, f"{name}.set")
        acclaunch("convert", source, out, "--to", "safetensors", "--max_shard_size", 70)
        acclaunch("convert", out, out + ".bin", "--to", "bin")
        check_tied(out + ".bin", expected)
        out = os.path.join(folder, f"{name}.dcp")
        acclaunch("convert", source, out, "--to", "dcp")
        check_equal(as_torch_reads(folder, out), {"model": expected})
    merge_fsdp_weights(out, out + ".theirs", safe_serialization=True)
    acclaunch("merge-weights", out, out + ".mine")
    assert content(f"{out}.mine/model.safetensors") == content(f"{out}.theirs/model.safetensors")


for each in PARTS.split(","):
    if each in ("zero", "travel") and get_fp32_state_dict_from_zero_checkpoint is None:
        print(f"{each}: skipped, because DeepSpeed is not installed")
        continue
    with tempfile.TemporaryDirectory() as scratch:
        {"merge": merge, "zero": zero, "travel": travel, "odd": odd, "shared": shared}[each](scratch)
    print(f"ok {each}", flush=True)
