# SPDX-License-Identifier: Apache-2.0
"""torch_fsdp2_test.py ACCLAUNCH PACKAGE: trains one module with acclaunch.torch and with torch's FSDP 2, on
two ranks, and moves the training from each to the other through checkpoints (torch DCP). Losses and
norms must be equal. Exits with 77 without torch."""

import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from run_ranks import train_on  # noqa: E402

train_on(2, flags=("--use_fsdp", "--fsdp_state_dict_type", "SHARDED_STATE_DICT"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from leave import leave  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (get_model_state_dict,
                                                     get_optimizer_state_dict,
                                                     set_model_state_dict,
                                                     set_optimizer_state_dict)
from torch.nn import functional as F

MODEL, OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"  # Accelerate's names
WORDS, SIZE, ROWS = 13, 8, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


class Net(nn.Module):
    """A tied weight, blocks, and the buffers of a BatchNorm."""

    def __init__(self, norm):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.batch_norm = nn.BatchNorm1d(SIZE) if norm else nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.batch_norm(self.embedding(ids).flatten(0, 1)).unflatten(0, ids.shape)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), ids.flatten())


class Ours:
    def __init__(self, acc, runtime, norm):
        torch.manual_seed(5)
        self.acc, self.runtime = acc, runtime
        self.model = acc.fully_shard(Net(norm), runtime)
        self.optimizer = acc.AdamW(self.model, lr=1e-2)

    def step(self, ids):
        loss = self.model(ids)
        self.optimizer.scale(loss).backward()
        return self.runtime.mean(loss), self.optimizer.step().grad_norm

    def save(self, folder):
        self.runtime.save(folder, self.model, self.optimizer, {"step": 3, "text": "é"},
                          {"noise": bytes([self.runtime.rank])})

    def load(self, folder):
        return self.runtime.load(folder, self.model, self.optimizer)


class Theirs:
    def __init__(self, norm, precision):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch.manual_seed(5)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        policy = MixedPrecisionPolicy(param_dtype=dtypes.get(precision),
                                      reduce_dtype=torch.float32)
        self.model = Net(norm)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, ids):
        loss = self.model(ids)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1e9).full_tensor().item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        return mean.item(), norm

    def save(self, folder):
        dcp.save({"model": get_model_state_dict(self.model)}, checkpoint_id=f"{folder}/{MODEL}")
        dcp.save({"optimizer": get_optimizer_state_dict(self.model, self.optimizer)},
                 checkpoint_id=f"{folder}/{OPTIMIZER}")

    def load(self, folder):
        state = {"model": get_model_state_dict(self.model)}
        dcp.load(state, checkpoint_id=f"{folder}/{MODEL}")
        set_model_state_dict(self.model, state["model"])
        state = {"optimizer": get_optimizer_state_dict(self.model, self.optimizer)}
        dcp.load(state, checkpoint_id=f"{folder}/{OPTIMIZER}")
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])


def batches(count, first=0, rank=0):
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(100 * step + rank)
        yield torch.randint(WORDS, (ROWS, 5), generator=generator)


def expect_equal_steps(one, other, ids, tolerance):
    for batch in ids:
        for kind, a, b in zip(("loss", "norm"), one.step(batch), other.step(batch)):
            assert abs(a - b) <= tolerance * max(1.0, abs(b)), (kind, a, b)


def buffers_of(model):
    return {name: value.clone() for name, value in model.named_buffers()}


def worker(folder):
    import acclaunch.torch as acc

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # Gradients and inputs are rounded to 16 bits in the same places; sums are in fp32 on both sides.
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        for gather in ("share", "copy"):
            for precision, tolerance in (("no", 5e-6), ("bf16", 2e-2), ("fp16", 3e-3)):
                os.environ |= {"FSDP_SHARDING_STRATEGY": strategy, "ACC_SHM_GATHER": gather,
                               "ACCELERATE_MIXED_PRECISION": precision}
                ours = Ours(acc, acc.Runtime(), norm=precision == "no")
                expect_equal_steps(ours, Theirs(precision == "no", precision),
                                   batches(3, rank=dist.get_rank()), tolerance)
    os.environ |= {"FSDP_SHARDING_STRATEGY": "FULL_SHARD", "ACCELERATE_MIXED_PRECISION": "no"}
    runtime = acc.Runtime()
    ours, theirs = Ours(acc, runtime, True), Theirs(True, "no")
    expect_equal_steps(ours, theirs, batches(3), 5e-6)
    ours.save(f"{folder}/ours")
    theirs.save(f"{folder}/theirs")
    # All ranks had the same batches: a checkpoint has the statistics of one rank, ours of rank 0.
    ours_again, theirs_again = Ours(acc, runtime, True), Theirs(True, "no")
    state = ours_again.load(f"{folder}/theirs")
    assert state.get("step") is None
    theirs_again.load(f"{folder}/ours")
    for name, value in buffers_of(theirs_again.model).items():
        assert value.dtype == buffers_of(ours.model)[name].dtype
        assert torch.allclose(value.double(), buffers_of(ours_again.model)[name].double()), name
    expect_equal_steps(ours_again, theirs_again, batches(3, first=3), 5e-6)
    state = Ours(acc, runtime, True).load(f"{folder}/ours")
    assert (state.get("step"), state.get("text"), state.get("none", 7)) == (3, "é", 7)
    assert state.of_rank("noise") == bytes([runtime.rank])
    series = acc.CheckpointSeries(runtime, f"{folder}/series", total_limit=1)
    assert series.newest() is None
    for step in range(2):
        series.save(ours.model, ours.optimizer, {"step": step})
    assert series.newest() == f"{folder}/series/checkpoint_1", series.newest()
    assert Ours(acc, runtime, True).load(series.newest()).get("step") == 1
    assert not os.path.exists(f"{folder}/series/checkpoint_0")
    assert not series.keep_in_memory(ours.model, ours.optimizer)  # without memory_checkpoint_every
    again = Ours(acc, runtime, True)
    resumed = series.resume(again.model, again.optimizer)
    assert (resumed.get("step"), resumed.source) == (1, series.newest())
    assert acc.CheckpointSeries(runtime, f"{folder}/none").resume(again.model, again.optimizer) is None
    saved_beside(acc, runtime, ours, folder)
    print("trained", flush=True)
    leave()


def saved_beside(acc, runtime, ours, folder):
    """save_async has the state of its call; its failure is raised by wait_save, on every rank."""
    ours.save(f"{folder}/usual")
    assert runtime.save_async(f"{folder}/beside", ours.model, ours.optimizer, {"step": 4})
    ours.step(next(batches(1)))
    runtime.wait_save()
    assert not runtime.saving
    one, other = Ours(acc, runtime, True), Ours(acc, runtime, True)
    one.load(f"{folder}/usual")
    assert other.load(f"{folder}/beside").get("step") == 4
    expect_equal_steps(one, other, batches(2), 0)
    with open(f"{folder}/file", "w"):
        pass
    assert runtime.save_async(f"{folder}/file/x", ours.model, ours.optimizer)
    ours.step(next(batches(1)))
    try:
        runtime.wait_save()
    except acc.ConfigError as error:
        assert "file" in str(error), error
    else:
        raise AssertionError("saved into a file")
    assert runtime.save_async(f"{folder}/beside", ours.model, ours.optimizer, refuse=True)
    runtime.wait_save()


if __name__ == "__main__":
    worker(*sys.argv[1:])
