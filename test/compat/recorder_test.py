# SPDX-License-Identifier: Apache-2.0
"""recorder_test.py ACCLAUNCH PACKAGE: trains one model under many frameworks, on torch's engine and on the engine acc,
and records it. The recordings must say the same as that of plain torch on the global batch, and losses must not change.
Exits with 77 without torch."""

import collections
import functools
import importlib.util
import json
import os
import pathlib
import sys
import tempfile

if not importlib.util.find_spec("torch"):
    print("skipped: no torch")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from leave import leave  # noqa: E402
from run_ranks import run_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

WORDS, SIZE, ROWS, LENGTH, STEPS, MICRO_STEPS = 61, 12, 8, 9, 3, 2
LIMIT = 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 37), nn.Linear(37, SIZE)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """With a tied parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        self.seen += 1
        return self.head(self.norm(x))


def new_net():
    torch.manual_seed(3)
    return Net()


def batches(rank, ranks):
    """The micro-steps' batches of this rank in all steps."""
    data = torch.randint(WORDS, (STEPS, MICRO_STEPS, ranks, ROWS // ranks, LENGTH),
                         generator=torch.Generator().manual_seed(5))
    return [list(step[:, rank]) for step in data]


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


# ---- trainings: each returns its losses -------------------------------------------------------------


def train(model, micro_batches, clip=None):
    optimizer, found = adamw(model), []
    for step in micro_batches:
        for ids in step:
            loss = loss_of(model, ids)
            (loss / len(step)).backward()
            found.append(loss.item())
        found.append(float((clip or functools.partial(nn.utils.clip_grad_norm_, model.parameters()))(LIMIT)))
        optimizer.step()
        optimizer.zero_grad()
    return found


def own_batches():
    return batches(dist.get_rank(), dist.get_world_size())


def train_plain():
    """On the batches of all ranks."""
    parts = zip(*(batches(rank, dist.get_world_size()) for rank in range(dist.get_world_size())))
    return train(new_net(), [[torch.cat(each) for each in zip(*step)] for step in parts])


def train_ddp():
    return train(nn.parallel.DistributedDataParallel(new_net()), own_batches())


def train_fsdp2(**arguments):
    from torch.distributed.fsdp import fully_shard
    net = new_net()
    for each in (*net.blocks, net):
        fully_shard(each, **arguments)
    return train(net, own_batches())


def train_fsdp1(**arguments):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    net = FullyShardedDataParallel(new_net(), auto_wrap_policy=ModuleWrapPolicy([Block]),
                                   device_id=torch.device("cpu"), **arguments)
    return train(net, own_batches(), net.clip_grad_norm_)


def train_deepspeed(stage, **settings):
    import deepspeed
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles C++ code
    deepspeed.utils.logger.setLevel("ERROR")
    net = new_net()
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
        "train_micro_batch_size_per_gpu": ROWS // dist.get_world_size(), "gradient_accumulation_steps": MICRO_STEPS,
        "gradient_clipping": LIMIT, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 1e-2, "torch_adam": True}}, **settings})
    found = []
    for ids in sum(own_batches(), []):
        loss = loss_of(engine, ids)
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


def train_accelerate(**arguments):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_STEPS, **arguments)
    net = new_net()
    model, optimizer = accelerator.prepare(net, adamw(net))
    found = []
    for ids in sum(own_batches(), []):
        with accelerator.accumulate(model):
            loss = loss_of(model, ids)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                found.append(float(accelerator.clip_grad_norm_(model.parameters(), LIMIT)))
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    return found


HAS_DEEPSPEED = all(map(importlib.util.find_spec, ("deepspeed",)))
HAS_ACCELERATE = all(map(importlib.util.find_spec, ("accelerate",)))
BF16 = {"bf16": {"enabled": True}}
# name: the training, the wrapper that the recording names on torch's engine, and the tolerance
CASES = {
    "DDP": (train_ddp, "ddp", 1e-4),
    "FSDP2": (train_fsdp2, "fsdp2", 1e-4),
    "FSDP1": (functools.partial(train_fsdp1, use_orig_params=False), "fsdp", 1e-4),
    "FSDP1, use_orig_params": (functools.partial(train_fsdp1, use_orig_params=True), "fsdp", 1e-4),
}
if HAS_ACCELERATE:
    CASES["Accelerate"] = train_accelerate, "ddp", 1e-4
if HAS_DEEPSPEED:
    CASES |= {f"DeepSpeed, stage {stage}{suffix}": (functools.partial(train_deepspeed, stage, **more), "deepspeed", bound)
              for suffix, more, bound in (("", {}, 1e-4), (", bf16", BF16, 0.2)) for stage in range(4)}
ON_ACC = [name for name in CASES if name.startswith(("FSDP", "DeepSpeed"))]


# ---- recordings -------------------------------------------------------------------------------------


def read(folder):
    """By step, phase and name: the number of elements, the sum of squares and the sketch of all ranks' parts; and the
    other lines of each rank."""
    parts, others = collections.defaultdict(dict), collections.defaultdict(list)
    for path in sorted(pathlib.Path(folder).glob("rank_*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] != "tensor":
                others[line["kind"]].append(line)
                continue
            found = parts[line["step"], line["phase"], line["name"]]
            found[(line.get("begin", 0), line["count"]) if "micro_step" not in line else len(found)] = line
    return {key: [sum(each["count"] for each in found.values()), sum(each["squares"] for each in found.values()),
                  [sum(each["sketch"][k] for each in found.values()) for k in range(4)]]
            for key, found in parts.items()}, others


def expect_alike(name, found, expected, tolerance):
    assert found.keys() == expected.keys(), (name, sorted(found.keys() ^ expected.keys())[:8])
    for key in expected:
        if key[1] == "buffer":
            continue
        (count, squares, sketch), (their_count, their_squares, theirs) = found[key], expected[key]
        if key[1] == "backward":  # of a mean over fewer samples
            factor = dist.get_world_size()
            squares, sketch = squares / factor**2, [each / factor for each in sketch]
        assert count == their_count, (name, key, count, their_count)
        bound = tolerance * (their_squares**0.5 * (count**0.5 if "ward" in key[1] else 1) + 1e-3)
        assert abs(squares**0.5 - their_squares**0.5) <= bound, (name, key, squares, their_squares)
        assert all(abs(a - b) <= bound for a, b in zip(sketch, theirs)), (name, key, sketch, theirs)


def record(folder, training):
    from acclaunch import _recorder
    os.environ["ACC_RECORD"] = str(folder)
    _recorder.install()
    try:
        return training()
    finally:
        _recorder._recorder.end("exit")


def check_case(folder, name):
    training, wrapper, tolerance = CASES[name]
    without = training()
    found = record(folder / name, training)
    assert found == without, (name, found, without)
    dist.barrier()
    lines, others = read(folder / name)
    expected, their_others = read(folder / "plain" / str(dist.get_rank()))
    expect_alike(name, lines, expected, tolerance)
    ranks = dist.get_world_size()
    assert [each["world_size"] for each in others["program"]] == [ranks] * ranks, others["program"]
    model, = {json.dumps(each) for each in others["model"]}
    print(name, model[:0])


def check_on_rank(folder):
    folder = pathlib.Path(folder)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    record(folder / "plain" / str(dist.get_rank()), train_plain)
    is_acc = os.environ.get("ACC_ENGINE") == "acc"
    for name in sys.argv[4:] or (ON_ACC if is_acc else CASES):
        try:
            check_case(folder, name)
            print("passed:", name, flush=True)
        except Exception as e:
            import traceback; traceback.print_exc(); print("FAILED", name, flush=True)
    leave()


def main():
    with tempfile.TemporaryDirectory() as folder:
        for flags in ((), ("--engine", "acc")):
            print(run_ranks(2, folder + "/" + "".join(flags), *sys.argv[3:], flags=flags).stdout)


if __name__ == "__main__":
    check_on_rank(sys.argv[3]) if "RANK" in os.environ else main()
