# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with torch's FSDP 2, and goes on from snapshots in the launcher's memory after a failure. The
lines with `snapshots` are all that this needs:

    acclaunch --engine acc --cpu --num_processes 2 --max_restarts 3 --memory_checkpoint_every 5 train_snapshots.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from acclaunch.snapshots import Snapshots

WORDS, SIZE = 29, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return x + F.dropout(F.gelu(self.linear(self.norm(x))), 0.1, self.training)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.norm = nn.BatchNorm1d(SIZE)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(SIZE, WORDS)

    def forward(self, ids):
        x = self.norm(self.embedding(ids))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), (ids + 1) % WORDS)


@torch.no_grad()
def evaluate(model):
    model.eval()
    model(torch.arange(WORDS))
    model.train()


def train(steps):
    torch.manual_seed(1)
    model = Net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    torch.manual_seed(2 + dist.get_rank())  # of this rank's batches and dropout; part of each snapshot
    snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in range(snapshots.resume(), steps):
        loss = model(torch.randint(WORDS, (8,)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if (step + 1) % 2 == 0:
            evaluate(model)
        print(f"rank {dist.get_rank()} step {step + 1} loss {loss.item():.9g}", flush=True)
        snapshots.keep(step + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    dist.init_process_group()
    train(parser.parse_args().steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
