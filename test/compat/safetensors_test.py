# SPDX-License-Identifier: Apache-2.0
"""The safetensors package writes files, safetensors_copy reads and rewrites them, the package reads them.

    python safetensors_test.py PATH/TO/safetensors_copy

Exits with 77 if numpy or safetensors is not installed. Without torch bf16 is not tested, without
huggingface_hub sets of files are not tested either.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COPY = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()
IN, OUT = (os.path.join(FOLDER.name, name) for name in ("in.safetensors", "out.safetensors"))


def copy(*dtype):
    subprocess.run([COPY, IN, OUT, *dtype], check=True)


def test_numpy_types():
    generator = numpy.random.default_rng(1)
    tensors = {
        "matrix": generator.standard_normal((37, 11), dtype=numpy.float32),
        "half": generator.standard_normal((3, 5, 7)).astype(numpy.float16),
        "double": generator.standard_normal(1001),
        "scalar": numpy.array(2.5, numpy.float32),
        "empty": numpy.zeros((0, 4), numpy.float32),
        "name with \"quotes\" / é": numpy.arange(3, dtype=numpy.float32),
    }
    save_file(tensors, IN, metadata={"format": "pt"})
    copy()
    back = load_file(OUT)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.astype(numpy.float32) if tensor.dtype == numpy.float64 else tensor
        assert back[name].dtype == expected.dtype and back[name].shape == expected.shape, name
        assert back[name].tobytes() == expected.tobytes(), name
    with safe_open(OUT, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    copy("F16")
    for name, tensor in load_file(OUT).items():
        expected = tensors[name].astype(numpy.float32).astype(numpy.float16)
        assert tensor.tobytes() == expected.tobytes(), name


def test_bf16():
    try:
        import torch
        from safetensors.torch import load_file as load_torch, save_file as save_torch
    except ImportError as error:
        print(f"bf16 not tested: {error}")
        return
    torch.manual_seed(1)
    tensors = {"brain": torch.randn(4099).bfloat16(), "wide": torch.randn(70, 3) * 1e3}
    save_torch(tensors, IN)
    copy()
    assert all(torch.equal(tensors[name], value) for name, value in load_torch(OUT).items())
    copy("BF16")
    for name, value in load_torch(OUT).items():
        assert torch.equal(tensors[name].bfloat16(), value), name


def load_set(folder):
    """Returns all tensors of a folder, and the names in each file."""
    from safetensors.torch import load_file as load_torch
    files = {name: load_torch(os.path.join(folder, name))
             for name in os.listdir(folder) if name.endswith(".safetensors")}
    tensors = {name: tensor for file in files.values() for name, tensor in file.items()}
    return tensors, {name: sorted(file) for name, file in files.items()}


def check_equal(found, expected):
    import torch
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_sets():
    try:
        import torch
        from huggingface_hub import save_torch_state_dict, split_torch_state_dict_into_shards
    except ImportError as error:
        print(f"sets of files not tested: {error}")
        return
    torch.manual_seed(2)
    tensors = {
        "a.weight": torch.randn(30, 20), "b.half": torch.randn(333).half(),
        "c.large": torch.randn(5000), "d.count": torch.arange(41), "e.flag": torch.rand(77) > 0.5,
        "f.brain": torch.randn(9, 9).bfloat16(), "g.wide": torch.randn(50).double(),
        "h.byte": torch.arange(200, dtype=torch.uint8), "i.scalar": torch.tensor(3.5),
    }
    for limit in (1, 700, 3000, 5000, 10**9):
        theirs, ours = (os.path.join(FOLDER.name, f"{who}{limit}") for who in ("theirs", "ours"))
        os.mkdir(theirs)
        os.mkdir(ours)
        save_torch_state_dict(tensors, theirs, max_shard_size=limit)
        subprocess.run([COPY, "--set", theirs, ours, str(limit)], check=True)
        found, files = load_set(ours)
        check_equal(found, tensors)
        split = split_torch_state_dict_into_shards(tensors, max_shard_size=limit)
        assert files == {name: sorted(names) for name, names in split.filename_to_tensors.items()}
        index = os.path.join(ours, "model.safetensors.index.json")
        assert os.path.exists(index) == split.is_sharded
        if split.is_sharded:
            with open(index) as file:
                assert json.load(file) == {"metadata": split.metadata,
                                           "weight_map": split.tensor_to_filename}


test_numpy_types()
test_bf16()
test_sets()
