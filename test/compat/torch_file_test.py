# SPDX-License-Identifier: Apache-2.0
"""torch.save writes files, torch_file_copy reads and rewrites them, torch.load reads them.

    python torch_file_test.py PATH/TO/torch_file_copy

Exits with 77 if torch is not installed.
"""
import collections
import os
import subprocess
import sys
import tempfile
import zipfile

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COPY = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()
IN, OUT = (os.path.join(FOLDER.name, name) for name in ("in.pt", "out.pt"))


def copy():
    return subprocess.run([COPY, IN, OUT], capture_output=True, text=True)


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


def flat(value, path=""):
    if isinstance(value, torch.Tensor):
        return {path: value}
    found = {}
    for key, item in value.items():
        found |= flat(item, f"{path}.{key}" if path else key)
    return found


def round_trip(value):
    torch.save(value, IN)
    result = copy()
    assert result.returncode == 0, result.stderr
    expected = flat(value)
    for weights_only in (True, False):
        back = torch.load(OUT, weights_only=weights_only)
        assert list(back) == list(expected)
        for name, tensor in expected.items():
            assert same(back[name], tensor), name


def test_every_dtype_that_we_write():
    subprocess.run([COPY, "--write", OUT], check=True)
    with zipfile.ZipFile(OUT) as archive:
        assert archive.testzip() is None
        # Blocks of 256 KiB: the large complex128 tensor has 22.
        sums = [i.file_size for i in archive.infolist() if "/.acc/crc32/" in i.filename]
        assert len(sums) == 22 and max(sums) == 88, sums
    for arguments in ({"weights_only": True}, {"weights_only": False}, {"mmap": True}):
        tensors = torch.load(OUT, **arguments)
        assert len(tensors) == 22 * 4
        for name, tensor in tensors.items():
            dtype, shape = name.split(" ", 1)
            assert tensor.dtype == getattr(torch, dtype) and str(list(tensor.shape)) == shape, name
            step = 3 if dtype == "bool" else 113
            expected = torch.arange(tensor.numel() * tensor.element_size()) % step
            if dtype == "bool":
                expected = expected == 0
            assert torch.equal(bits(tensor), expected.to(torch.uint8)), name
    tensors["half"] = tensors["float16 [2, 3]"] + 1  # the loaded tensor is usable


def test_files_that_torch_writes():
    torch.manual_seed(1)
    base = torch.randn(6, 4)
    kinds = {str(d): torch.ones(3, 2).to(d) for d in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float64, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128)}
    odd = {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "wide": torch.randn(1, 5)[:, :5],
           "grad": torch.ones(2, requires_grad=True), "é": torch.ones(1)}
    views = {"all": base, "rows": base[2:4], "row": base[3], "tail": base.reshape(-1)[7:],
             "turned": base.t(), "every second": base[::2, 1::2], "repeated": base[:1].expand(5, 4),
             "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    round_trip({"kinds": kinds, "odd": odd, "views": views})
    parameter = torch.nn.Parameter(torch.randn(3))
    named = torch.randn(4)
    named.note = "a tensor with attributes"
    round_trip(collections.OrderedDict(a=parameter, b=torch.nn.Buffer(torch.ones(2)), c=named))
    round_trip(torch.nn.Linear(3, 2).state_dict())
    round_trip({f"t{i}": torch.full((i,), float(i)) for i in range(2000)})


def test_protocols_and_checksums():
    for protocol in range(2, 6):
        torch.save({"t": torch.arange(5)}, IN, pickle_protocol=protocol)
        assert copy().returncode == 0, protocol
        assert torch.equal(torch.load(OUT)["t"], torch.arange(5))
    torch.serialization.set_crc32_options(False)
    round_trip({"t": torch.arange(100)})
    torch.serialization.set_crc32_options(True)


def refused(value, *parts, **options):
    torch.save(value, IN, **options)
    result = copy()
    assert result.returncode == 2 and all(part in result.stderr for part in (IN, *parts)), result.stderr


def test_refused_files():
    refused({"t": torch.ones(1).expand(2**20, 2**20)}, "repeats its elements")
    refused({"t": torch.ones(2, dtype=torch.complex64).conj()}, 'view of kind "conj"')
    refused({"t": torch._neg_view(torch.ones(2))}, 'view of kind "neg"')
    refused({"t": torch.eye(2).to_sparse()}, "_rebuild_sparse_tensor is not allowed")
    refused({"t": torch.ones(2)}, "older form", _use_new_zipfile_serialization=False)
    refused({"f": os.system}, "global posix.system is not allowed")
    refused(torch.nn.Linear(2, 2), "is not allowed")
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), IN)
    result = copy()
    assert result.returncode == 2 and "is compressed" in result.stderr, result.stderr
    damaged = {"t": torch.arange(4000.)}
    torch.save(damaged, IN)
    with open(IN, "r+b") as file:
        file.seek(9000)
        file.write(b"\x55")
    result = copy()
    assert result.returncode == 2 and "checksum of data/0" in result.stderr, result.stderr


def test_layout_is_that_of_torch():
    for value in ({"a": torch.arange(8.)}, {}, {"a": torch.ones(3, 5), "b": torch.zeros(0)}):
        torch.save(value, IN)
        torch.save(value, os.path.join(FOLDER.name, "archive.pt"))
        assert copy().returncode == 0
        theirs, ours = (zipfile.ZipFile(p).infolist() for p in (os.path.join(FOLDER.name, "archive.pt"), OUT))
        assert [i.filename for i in theirs] == [i.filename for i in ours]
        # The pickles differ in length. The following records are shifted by a multiple of 64 bytes, or by 0.
        assert len({(b.header_offset - a.header_offset) % 64 for a, b in list(zip(theirs, ours))[2:]}) == 1
        for a, b in zip(theirs, ours):
            assert (a.flag_bits, a.extra, a.create_version, a.extract_version, a.date_time) == (
                b.flag_bits, b.extra, b.create_version, b.extract_version, b.date_time)
        raw = open(OUT, "rb").read()
        last = ours[-1]
        assert raw[-98:-94] == b"PK\6\6" and raw[-42:-38] == b"PK\6\7" and raw[-22:-18] == b"PK\5\6"
        assert last.filename == "archive/.data/serialization_id" and last.file_size == 40


test_every_dtype_that_we_write()
test_files_that_torch_writes()
test_protocols_and_checksums()
test_refused_files()
test_layout_is_that_of_torch()
