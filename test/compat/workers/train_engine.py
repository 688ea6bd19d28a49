#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_engine.py --steps N --metrics FILE [--checkpoint FILE], in a job of acclaunch --engine acc: trains with torch's
FSDP 2, or DDP under NO_SHARD, as train_gpt does, and goes on from snapshots in memory, or from the file, which it
writes at its end. It knows nothing of ranks that are lost. Every step has a batch of the same size in the same order.

TRAINED: "accelerate 1" or "accelerate 2", with Accelerate's section for FSDP of that version, or "deepspeed", with an
engine of each stage in turn. These have no file, and save beside the training, which nothing reads. MOMENTS: a folder
in which the test asks for the end of a rank, or of its machine, in a moment (lost_histories_test.py).
"""

import argparse
import copy
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from acclaunch import _rejoin, snapshots
from acclaunch.data import StatefulDataLoader

WORDS, SIZE, SAMPLES, BATCH = 13, 16, 60, 12
ENDLESS = 1000000  # steps, of a run that the test ends, and whose steps it makes again: without a pause, thousands
SAVE_EVERY = 10
ADAM = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
ENGINES = [
    {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "optimizer": ADAM, "gradient_clipping": 1.0,
     "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": ENDLESS}}},
    {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "optimizer": ADAM},
    {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
     "bf16": {"enabled": True}, "optimizer": {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}}},
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(2))
        self.head = nn.Linear(SIZE, WORDS)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + F.gelu(block(x))
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), (ids.flatten() + 1) % WORDS)


def sharded(net):
    machines, ranks = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    strategy = os.environ["FSDP_SHARDING_STRATEGY"]
    if strategy == "NO_SHARD":
        return nn.parallel.DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (machines // ranks, ranks) if strategy == "HYBRID_SHARD" else (machines,))
    for each in (*net.blocks, net):
        fully_shard(each, mesh=mesh)
    return net


class ByTorch:
    """What is trained, and how. objects: with a state; saves: True if it saves beside the training."""

    saves = False

    def __init__(self, net):
        self.net = sharded(net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2, momentum=0.9)
        self.objects = {"net": self.net, "optimizer": self.optimizer}

    def step(self, batch):
        loss = self.net(batch)
        self.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def backward(self, loss):
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)


class ByAccelerate(ByTorch):
    saves = True

    def __init__(self, net, version):
        from accelerate import Accelerator, FullyShardedDataParallelPlugin

        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=version, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Linear"],
            cpu_ram_efficient_loading=False, state_dict_type="SHARDED_STATE_DICT"))
        self.net, self.optimizer = self.accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
        self.objects = {"net": self.net, "optimizer": self.optimizer}

    def backward(self, loss):
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.net.parameters(), 2.0)

    def save(self, folder, steps):
        os.makedirs(folder, exist_ok=True)
        self.accelerator.save_state(f"{folder}/{steps}")


class ByDeepSpeed:
    saves = True

    def __init__(self, net):
        import deepspeed
        import plain_muon  # noqa: F401

        deepspeed.utils.logger.setLevel("ERROR")
        self.engines = []
        for section in ENGINES:
            own = copy.deepcopy(net)
            self.engines.append(deepspeed.initialize(model=own, model_parameters=own.parameters(), config={
                "train_micro_batch_size_per_gpu": BATCH // dist.get_world_size(), **section})[0])
        self.objects = {f"engine {number}": each for number, each in enumerate(self.engines)}

    def step(self, batch):
        losses = []
        for engine in self.engines:
            losses.append(engine(batch))
            engine.backward(losses[-1])
            engine.step()
        return torch.stack(losses).sum()

    def save(self, folder, steps):
        self.engines[0].save_checkpoint(folder, f"{steps}")


def mean(value):
    value = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def at(moment):
    """Ends this rank, or its machine, if the test asks for it: the first rank that comes to the moment."""
    asked = os.path.join(os.environ["MOMENTS"], moment)
    try:
        os.rename(asked, f"{asked} {os.getpid()}")
    except FileNotFoundError:
        return
    with open(f"{asked} {os.getpid()}") as file:
        os.kill(os.getppid() if file.read() == "machine" else os.getpid(), signal.SIGKILL)
    time.sleep(ENDLESS)


def watch_moments():
    """Calls `at` where ranks depend on each other."""
    put, exchange, send, receive = (snapshots._Memory._put, dist.batch_isend_irecv, dist.send, dist.recv)

    def killed_put(self, number, place):
        if place.complete:
            at("snapshot")
        put(self, number, place)

    def killed_exchange(works):
        begun = exchange(works)
        at("transfer")
        return begun

    def killed_set(self, key, value):
        self.store.set(key, value)
        if key.endswith(f"/{os.environ['RANK']}"):  # the address of torch's Gloo
            at("meet")

    def killed(function):
        def call(*arguments):
            at("read")
            return function(*arguments)
        return call

    snapshots._Memory._put, _rejoin._EpochStore.set = killed_put, killed_set
    dist.batch_isend_irecv, dist.send, dist.recv = killed_exchange, killed(send), killed(receive)


def main():
    parser = argparse.ArgumentParser()
    for name, type_ in (("steps", int), ("metrics", str)):
        parser.add_argument(f"--{name}", type=type_, required=True)
    parser.add_argument("--checkpoint")
    options = parser.parse_known_args()[0]
    if not hasattr(sys, "told_pid"):  # in a process one time
        sys.told_pid = True
        print("pid", os.getpid(), flush=True)
        if "MOMENTS" in os.environ:
            watch_moments()
    moment = at if "MOMENTS" in os.environ else lambda _: None
    moment("begin")
    asked, pause = [], 0.02 if options.steps == ENDLESS else 0  # seconds
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    torch.manual_seed(1)
    dist.init_process_group()
    net, samples = Net(), list(torch.randint(WORDS, (SAMPLES, 6)))
    how, _, version = os.environ.get("TRAINED", "torch").partition(" ")
    trained = {"torch": ByTorch, "deepspeed": ByDeepSpeed, "accelerate": ByAccelerate}[how](net, *map(int, version))
    loader = StatefulDataLoader(samples, global_batch_size=BATCH, seed=3, generator=torch.Generator())
    kept = snapshots.Snapshots(**trained.objects, loader=loader)
    steps, ends, full = kept.resume(), False, StateDictOptions(full_state_dict=True)
    if steps == 0 and not trained.saves and options.checkpoint and os.path.exists(options.checkpoint):
        steps, position, weights, states = torch.load(options.checkpoint)
        set_state_dict(trained.net, trained.optimizer, model_state_dict=weights, optim_state_dict=states, options=full)
        loader.load_state_dict(position)
    while not ends and steps < options.steps:
        for batch in loader:
            loss = trained.step(batch)
            steps, value, ends = steps + 1, mean(loss.detach()), mean(len(asked)) > 0
            if dist.get_rank() == 0:
                with open(options.metrics, "a") as out:
                    print(json.dumps({"step": steps, "loss": value, "time": time.time(),
                                      "ranks": list(range(dist.get_world_size()))}), file=out)
            kept.keep(steps)
            if trained.saves and options.checkpoint and options.steps == ENDLESS and steps % SAVE_EVERY == 0:
                trained.save(options.checkpoint, steps)
                moment("write")
            if ends or steps == options.steps:
                break
            time.sleep(pause)
    if options.checkpoint and not trained.saves:
        state = get_state_dict(trained.net, trained.optimizer, options=full)
        if dist.get_rank() == 0:
            torch.save((steps, loader.state_dict(), *state), options.checkpoint)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # threads of Gloo may abort an interpreter that ends


main()
