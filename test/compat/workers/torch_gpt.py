# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 style decoder in torch, with the parameter names of train_gpt, on one rank unsharded, on several sharded by
FSDP 2. Loads and saves folders of torch's DCP.

    python torch_gpt.py BATCHES.npy STEPS LAYERS,DIM,HEADS,VOCAB [--save DIR] [--load DIR]...

--save trains on the first STEPS batches of the file and saves. Then each --load resumes from its folder, and trains on
the other batches. Rank 0 prints the losses after each --load as one line of JSON, by folder.
"""
import argparse
import json
import os

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (get_model_state_dict,
                                                     get_optimizer_state_dict,
                                                     set_model_state_dict,
                                                     set_optimizer_state_dict)

from leave import leave

MODEL, OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"  # Accelerate's names


class Product(nn.Module):
    """A linear layer with weights in GPT-2's layout: [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Product(dim, 3 * dim)
        self.c_proj = Product(dim, dim)

    def forward(self, x):
        rows, time, dim = x.shape
        q, k, v = (part.view(rows, time, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(dim, dim=2))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(rows, time, dim))


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.c_fc = Product(dim, 4 * dim)
        self.c_proj = Product(4 * dim, dim)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Trunk(nn.Module):
    def __init__(self, layers, dim, heads, vocab, positions):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(positions, dim)
        self.h = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt(nn.Module):
    def __init__(self, layers, dim, heads, vocab, positions):
        super().__init__()
        self.transformer = Trunk(layers, dim, heads, vocab, positions)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, rows):
        logits = self.lm_head(self.transformer(rows[:, :-1]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def adamw(model):
    """The AdamW optimizer of train_gpt, with its parameter groups."""
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                              {"params": others, "weight_decay": 0.0}],
                             lr=3e-4, betas=(0.9, 0.95), eps=1e-8)


def load(model, optimizer, folder):
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=os.path.join(folder, MODEL))
    set_model_state_dict(model, state["model"])
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=os.path.join(folder, OPTIMIZER))
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def save(model, optimizer, folder):
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=os.path.join(folder, MODEL))
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)},
             checkpoint_id=os.path.join(folder, OPTIMIZER))


def train(args, batches, loaded=None):
    """Trains on some batches, from the state in the folder `loaded` if it is given. Returns the model, the optimizer
    and the losses."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(1)
    model = Gpt(*map(int, args.sizes.split(",")), batches.shape[2] - 1)
    if ranks > 1:
        sharded(model)
    optimizer = adamw(model)
    if loaded:
        load(model, optimizer, loaded)
    losses = []
    for batch in batches:
        loss = model(batch.chunk(ranks)[rank])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        if ranks > 1:
            dist.all_reduce(mean)
        losses.append(mean.item())
    return model, optimizer, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("batches")
    parser.add_argument("steps", type=int)
    parser.add_argument("sizes")
    parser.add_argument("--save")
    parser.add_argument("--load", action="append", default=[])
    args = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if several:
        dist.init_process_group("gloo")
    batches = torch.from_numpy(numpy.load(args.batches)).long()
    if args.save:
        model, optimizer, _ = train(args, batches[:args.steps])
        save(model, optimizer, args.save)
    losses = {folder: train(args, batches[args.steps:], folder)[2] for folder in args.load}
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(losses), flush=True)
    if several:
        leave()


main()
