# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint reads folders that we write, and we read folders that it writes.

    python dcp_test.py PATH/TO/dcp_folder

Exits with 77 if torch is not installed. torch is imported once; ranks are forked.
"""
import atexit
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, HuggingFaceStorageWriter
    from torch.distributed.checkpoint._extension import StreamTransformExtension
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOOL = sys.argv[1]
FOLDER = tempfile.mkdtemp(prefix="acc-dcp-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
RANKS = 4
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch.set_num_threads(1)  # threads do not survive a fork

# The tensors that dcp_folder writes.
OURS = [
    ("0.weight", torch.float32, (7, 13)), ("0.bias", torch.float32, (7,)),
    ("2.weight", torch.float32, (5, 7)), ("2.bias", torch.float32, (5,)),
    ("half", torch.float16, (9, 3, 2)), ("brain", torch.bfloat16, (200, 1000)),
    ("double", torch.float64, (11,)), ("long", torch.int64, (2, 2)), ("int", torch.int32, (4,)),
    ("short", torch.int16, (3, 5)), ("char", torch.int8, (10,)), ("byte", torch.uint8, (300,)),
    ("bool", torch.bool, (6,)), ("eight", torch.float8_e4m3fn, (8, 4)),
    ("scalar", torch.float32, ()), ("sharded_scalar", torch.float32, ()),
    ("empty", torch.float32, (0, 3)), ("large", torch.float32, (3, 100003)),
]  # fmt: skip
WORLDS = [(1, 1), (3, 3), (2, 6), (1, 5), (7, 7)]  # shards, ranks


def our_folder(shards, ranks):
    return os.path.join(FOLDER, f"ours_{shards}_{ranks}")


def our_tensors():
    tensors = {}
    for number, (name, dtype, shape) in enumerate(OURS):
        nbytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
        i = torch.arange(nbytes)
        pattern = (i * 131 + i // 251 * 7 + number * 17 + 1) % 251
        pattern = pattern % 2 if dtype == torch.bool else pattern
        flat = pattern.to(torch.uint8)
        tensors[name] = flat.view(dtype).reshape(shape) if nbytes else torch.empty(shape, dtype=dtype)
    tensors["tied"] = tensors["0.weight"]
    return tensors


def bits(tensor):
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(found, expected, what):
    assert found.dtype == expected.dtype, (what, found.dtype)
    assert tuple(found.shape) == tuple(expected.shape), (what, found.shape)
    assert torch.equal(bits(found), bits(expected)), what


def run_tool(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True)


def check_read(folder, expected, **rest):
    """Reads `folder` with our reader and compares its tensors and the fields `rest` of its other data."""
    out = folder + ".safetensors"
    result = run_tool("read", folder, out)
    assert result.returncode == 0, result.stderr
    found, told = load_file(out), json.loads(result.stdout)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name in expected:
        assert_same(found[name], expected[name], (folder, name))
    for key, value in rest.items():
        assert told[key] == value, (folder, key, told[key])
    return told


def run_ranks(function):
    """Calls `function(rank)` in RANKS forked processes."""
    children = {}
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store = dist.FileStore(os.path.join(FOLDER, "store_" + function.__name__), RANKS)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
                function(rank)
                dist.destroy_process_group()
                status = 0
            except BaseException:  # dcp's exceptions do not derive from Exception
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children[child] = rank
    failed = []
    while children:
        child, status = os.wait()
        rank = children.pop(child)
        if status != 0:
            failed.append(rank)
    assert not failed, f"ranks {failed} of {function.__name__}"


def empty_like(tensors):
    return {name: torch.empty_like(tensor) for name, tensor in tensors.items()}


def ours_into_plain_tensors():
    expected = our_tensors()
    for world in WORLDS:
        folder = our_folder(*world)
        state = {"model": {**empty_like(expected), "text": "", "groups": [{"lr": 0.0, "betas": ()}]}}
        # torch flattens a list only if it contains a tensor or a dict.
        dcp.load(state, checkpoint_id=folder)
        assert state["model"].pop("text") == "größer"
        assert state["model"].pop("groups") == [{"lr": 0.001, "betas": (0.9, 0.95)}]
        flat = {"model." + name: tensor for name, tensor in empty_like(expected).items()}
        dcp.load(flat, checkpoint_id=folder)
        built = {}
        _load_state_dict(built, FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        assert built["model"].pop("text") == "größer"
        assert built["model"].pop("groups") == [{"lr": 0.001, "betas": (0.9, 0.95)}]
        assert built["model"].keys() == expected.keys()
        for name, tensor in expected.items():
            assert_same(state["model"][name], tensor, (world, name))
            assert_same(flat["model." + name], tensor, (world, name, "flat"))
            assert_same(built["model"][name], tensor, (world, name, "built"))


def network():
    return torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))


def load_ours(rank, mesh, folder):
    """Loads into an FSDP2 model and into DTensors with other placements."""
    expected = our_tensors()
    model = network()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = {"model": model.state_dict()}
    assert all(isinstance(tensor, DTensor) for tensor in state["model"].values())
    cuts = {"half": Shard(0), "brain": Shard(1), "large": Shard(0), "double": Replicate(), "bool": Shard(0)}
    for name, cut in cuts.items():
        zeros = torch.zeros_like(expected[name])
        state["model"][name] = distribute_tensor(zeros, mesh, [cut], src_data_rank=None)
    dcp.load(state, checkpoint_id=folder, process_group=mesh.get_group())
    for name, tensor in state["model"].items():
        assert_same(tensor, expected[name], (folder, rank, name))


def full_tensors():
    generator = torch.Generator().manual_seed(3)
    shapes = {"rows": (7, 5), "few": (2, 26), "vector": (10,), "cube": (5, 3, 4), "wide": (3, 70000)}
    full = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    full["brain"] = torch.randn(9, 3, generator=generator).bfloat16()
    full["long"] = torch.randint(-(2**60), 2**60, (6, 2), generator=generator)
    return full


def cut(full, mesh, placements):
    return {name: distribute_tensor(t, mesh, placements, src_data_rank=None) for name, t in full.items()}


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    for step in range(3):
        model(torch.full((2, 13), 1.0 + step)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


class Rot13(StreamTransformExtension):
    @staticmethod
    def registry_name():
        return "stream.rot13"

    @staticmethod
    def from_descriptor(version):
        return Rot13()

    def get_descriptor(self):
        return "stream.rot13/1"

    def transform_to(self, output):
        return output

    def transform_from(self, input):
        return input


def both_ways(rank):
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (1, 2, 3, 4)}
    hybrid = DeviceMesh("cpu", [[0, 1], [2, 3]])
    for size in (1, 2, 3):
        if rank < size:
            for world in WORLDS:
                load_ours(rank, meshes[size], our_folder(*world))
    full = full_tensors()

    def save(name, state, group=None, writer=FileSystemWriter, **options):
        folder = os.path.join(FOLDER, name)
        dcp.save(state, storage_writer=writer(folder, **options), process_group=group)

    if rank < 3:
        three, group = cut(full, meshes[3], [Shard(0)]), meshes[3].get_group()
        three["scalar"] = torch.tensor(5.0)
        save("three", {"model": three}, group)
        save("threads", {"model": three}, group, thread_count=3)
        save("files", {"model": three}, group, single_file_per_rank=False)
        shards = cut(full, meshes[3], [Shard(0)])
        del shards["few"]  # the safetensors writer gives shards without rows no name
        save("hugging_face", shards, group, HuggingFaceStorageWriter, save_distributed=True)
    save("hybrid", {"model": cut(full, hybrid, [Replicate(), Shard(0)])})
    save("columns", {"model": cut(full | {"vector": full["rows"]}, hybrid, [Shard(0), Shard(1)])})

    torch.manual_seed(5)
    model = network()
    fully_shard(model, mesh=meshes[4])
    weights, optimizer = get_state_dict(model, train(model))
    save("fsdp2", {"model": weights, "optimizer": optimizer})
    expected = {f"model.{name}": bits(tensor) for name, tensor in weights.items()}
    for name, kinds in optimizer["state"].items():
        for kind, tensor in kinds.items():
            expected[f"optimizer.state.{name}.{kind}"] = bits(tensor)
    if rank == 0:
        torch.save(expected, os.path.join(FOLDER, "fsdp2.pt"))


def torchs_from_ranks():
    full = full_tensors()
    model = {"model." + name: tensor for name, tensor in full.items()}
    for name in ("three", "threads", "files"):
        told = check_read(os.path.join(FOLDER, name), model | {"model.scalar": torch.tensor(5.0)})
        assert told["names"]["model.rows"] == ["rows", "param"]
        assert told["world_size"] == 3
    assert len([f for f in os.listdir(os.path.join(FOLDER, "files")) if f.startswith("__0_")]) > 3
    check_read(os.path.join(FOLDER, "hybrid"), model, world_size=4)
    check_read(os.path.join(FOLDER, "columns"), model | {"model.vector": full["rows"]})
    check_read(os.path.join(FOLDER, "hugging_face"), {k: v for k, v in full.items() if k != "few"})

    folder = os.path.join(FOLDER, "fsdp2")
    expected = torch.load(folder + ".pt")
    told = run_tool("read", folder, folder + ".safetensors")
    assert told.returncode == 0, told.stderr
    found, told = load_file(folder + ".safetensors"), json.loads(told.stdout)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in found.items():
        assert torch.equal(bits(tensor), expected[name]), name
    assert told["names"]["optimizer.state.0.weight.exp_avg"] == ["0.weight", "exp_avg"]
    assert told["names"]["model.2.bias"] == ["2.bias", "param"]
    assert told["step"] == 3
    (group,) = told["groups"]
    assert sorted(group["parameters"]) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert group["values"]["lr"] == 0.01 and group["values"]["beta2"] == 0.9, group


def torchs_from_one_process():
    full = full_tensors() | {"empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5)}
    model = {"model." + name: tensor for name, tensor in full.items()}
    folder = os.path.join(FOLDER, "one")
    dcp.save({"model": full, "epoch": 3, "text": "x"}, checkpoint_id=folder)
    check_read(folder, model)
    metadata = os.path.join(folder, ".metadata")
    with open(metadata, "rb") as file:
        content = pickle.load(file)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        with open(metadata, "wb") as file:
            pickle.dump(content, file, protocol=protocol)
        check_read(folder, model)

    folder = os.path.join(FOLDER, "flat")
    dcp.save(full, checkpoint_id=folder, planner=DefaultSavePlanner(flatten_state_dict=False))
    told = check_read(folder, full)
    assert told["names"]["rows"] == ["rows", "param"]

    model = network()
    optimizer = train(model)
    optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": torch.tensor(0.25)})
    for flatten in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=flatten)
        weights, states = get_state_dict(model, optimizer, options=options)
        folder = os.path.join(FOLDER, f"groups_{flatten}")
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
        told = json.loads(run_tool("read", folder, folder + ".safetensors").stdout)
        groups = [(sorted(group["parameters"]), group["values"]["lr"]) for group in told["groups"]]
        assert sorted(groups) == [(["0.bias", "0.weight", "2.weight"], 0.01), (["2.bias"], 0.25)], told["groups"]

    folder = os.path.join(FOLDER, "transformed")
    dcp.save(full, storage_writer=FileSystemWriter(folder, _extensions=[Rot13()]))
    result = run_tool("read", folder, folder + ".safetensors")
    assert result.returncode == 2 and "is stored through a transform" in result.stderr, result
    assert "stream.rot13" in result.stderr, result


for world in WORLDS:
    written = run_tool("write", our_folder(*world), *map(str, world))
    assert written.returncode == 0, written.stderr
    check_read(our_folder(*world), {"model." + name: tensor for name, tensor in our_tensors().items()})
run_ranks(both_ways)
torchs_from_ranks()
torchs_from_one_process()
ours_into_plain_tensors()
