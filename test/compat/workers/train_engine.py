#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_engine.py --steps N --metrics FILE [--checkpoint FILE], in a job of acclaunch --engine acc: trains with torch's
FSDP 2, or DDP under NO_SHARD, as train_gpt does, and goes on from snapshots in memory, or from the file, which it
writes at its end. It knows nothing of ranks that are lost. Every step has a batch of the same size in the same order.
"""

import argparse
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

from acclaunch.data import StatefulDataLoader
from acclaunch.snapshots import Snapshots

WORDS, SIZE, SAMPLES, BATCH = 13, 16, 60, 12
ENDLESS = 1000000  # steps, of a run that the test ends, and whose steps it makes again: without a pause, thousands


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
        return F.cross_entropy(self.head(x).flatten(0, 1), (ids.flatten() + 1) % WORDS)


def sharded(net):
    machines, ranks = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    strategy = os.environ["FSDP_SHARDING_STRATEGY"]
    if strategy == "NO_SHARD":
        return nn.parallel.DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (machines // ranks, ranks) if strategy == "HYBRID_SHARD" else (machines,))
    for each in (*net.blocks, net):
        fully_shard(each, mesh=mesh)
    return net


def mean(value):
    value = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    for name, type_ in (("steps", int), ("metrics", str)):
        parser.add_argument(f"--{name}", type=type_, required=True)
    parser.add_argument("--checkpoint")
    options = parser.parse_known_args()[0]
    if not hasattr(sys, "told_pid"):  # in a process one time
        sys.told_pid = True
        print("pid", os.getpid(), flush=True)
    asked, pause = [], 0.02 if options.steps == ENDLESS else 0  # seconds
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    torch.manual_seed(1)
    dist.init_process_group()
    net, samples = Net(), list(torch.randint(WORDS, (SAMPLES, 6)))
    net = sharded(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    loader = StatefulDataLoader(samples, global_batch_size=BATCH, seed=3, generator=torch.Generator())
    snapshots = Snapshots(net=net, optimizer=optimizer, loader=loader)
    steps, ends, full = snapshots.resume(), False, StateDictOptions(full_state_dict=True)
    if steps == 0 and options.checkpoint and os.path.exists(options.checkpoint):
        steps, position, weights, states = torch.load(options.checkpoint)
        set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=states, options=full)
        loader.load_state_dict(position)
    while not ends and steps < options.steps:
        for batch in loader:
            loss = net(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 2.0)
            optimizer.step()
            optimizer.zero_grad()
            steps, value, ends = steps + 1, mean(loss.detach()), mean(len(asked)) > 0
            if dist.get_rank() == 0:
                with open(options.metrics, "a") as out:
                    print(json.dumps({"step": steps, "loss": value, "time": time.time(),
                                      "ranks": list(range(dist.get_world_size()))}), file=out)
            snapshots.keep(steps)
            if ends or steps == options.steps:
                break
            time.sleep(pause)
    state = get_state_dict(net, optimizer, options=full)
    if options.checkpoint and dist.get_rank() == 0:
        torch.save((steps, loader.state_dict(), *state), options.checkpoint)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # threads of Gloo may abort an interpreter that ends


main()
