#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_replicas.py --steps N --checkpoint FOLDER --metrics FILE, in a job of acclaunch: trains with acclaunch.torch as
train_gpt does, and rejoins, also with other ranks. TORCH_OPTIMIZER: with an optimizer of torch. Every step has a batch
of the same size in the same order."""

import argparse
import json
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F

import acclaunch.torch as acc
from acclaunch.data import StatefulDataLoader

WORDS, SIZE, SAMPLES, BATCH = 13, 16, 60, 12
ENDLESS = 1000000  # steps, of a run that the test ends, and whose steps it makes again: without a pause, thousands


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(2))
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, SIZE), persistent=False)

    def forward(self, ids):
        x = self.embedding(ids) * self.scale
        for block in self.blocks:
            x = x + F.gelu(block(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), (ids.flatten() + 1) % WORDS)


def make_optimizer(model):
    """The steps depend on the scale of the gradients, whose norm is clipped in the first ones."""
    if "TORCH_OPTIMIZER" in os.environ:
        optimizer = acc.TorchOptimizer(model, torch.optim.SGD, lr=1e-2, momentum=0.9)
    else:
        optimizer = acc.SGD(model, lr=1e-2, momentum=0.9)
    optimizer.clip_norm = 2.0
    return optimizer


def main():
    parser = argparse.ArgumentParser()
    for name, type_ in (("steps", int), ("checkpoint", str), ("metrics", str)):
        parser.add_argument(f"--{name}", type=type_, required=True)
    options = parser.parse_known_args()[0]
    print("pid", os.getpid(), flush=True)
    asked, pause = [], 0.02 if options.steps == ENDLESS else 0  # seconds
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    torch.manual_seed(1)
    runtime = acc.Runtime()
    model = acc.fully_shard(Net(), runtime)
    optimizer = make_optimizer(model)
    loader = StatefulDataLoader(list(torch.randint(WORDS, (SAMPLES, 6))), global_batch_size=BATCH, seed=3)
    series = acc.CheckpointSeries(runtime, options.checkpoint)
    rejoins = False
    while True:
        try:
            state = series.rejoin(model, optimizer) if rejoins else series.resume(model, optimizer)
            if state is None:
                series.save(model, optimizer, loader.state_dict())
            else:
                loader.load_state_dict(state)
            ends = False
            while not ends and optimizer.steps < options.steps:
                for batch in loader:
                    loss = model(batch)
                    loss.backward()
                    optimizer.step()
                    mean, ends = runtime.mean(loss), runtime.mean(len(asked)) > 0
                    if runtime.rank == 0:
                        with open(options.metrics, "a") as out:
                            print(json.dumps({"step": optimizer.steps, "loss": mean, "time": time.time(),
                                              "ranks": list(range(runtime.world_size))}), file=out)
                    series.keep_in_memory(model, optimizer, loader.state_dict())
                    if ends or optimizer.steps == options.steps:
                        break
                    time.sleep(pause)
            series.save(model, optimizer, loader.state_dict())
            runtime.barrier()
            return
        except acc.Error as error:
            if not series.can_rejoin(error):
                raise
            rejoins = True


main()
