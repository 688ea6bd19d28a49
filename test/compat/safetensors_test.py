"""The safetensors package writes, safetensors_copy reads and writes, the package reads again.

    python safetensors_test.py PATH/TO/safetensors_copy

Exit status 77 where numpy or safetensors is missing; bf16 is left out where torch is missing.
"""
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
        print(f"without bf16: {error}")
        return
    torch.manual_seed(1)
    tensors = {"brain": torch.randn(4099).bfloat16(), "wide": torch.randn(70, 3) * 1e3}
    save_torch(tensors, IN)
    copy()
    assert all(torch.equal(tensors[name], value) for name, value in load_torch(OUT).items())
    copy("BF16")
    for name, value in load_torch(OUT).items():
        assert torch.equal(tensors[name].bfloat16(), value), name


test_numpy_types()
test_bf16()
