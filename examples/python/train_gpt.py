# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT-2 with PyTorch's modules and autograd, sharded as the launcher's configuration says:

    acclaunch --config_file configs/fsdp_full_shard.yaml --num_processes 2 \
        python examples/python/train_gpt.py --data book.txt --steps 200 --save run

Nothing in the modules is about sharding. --help lists the flags."""

import argparse
import json

import acclaunch.torch as acc
import numpy
import torch
from torch import nn
from torch.nn import functional as F


class Linear(nn.Module):
    """y = x W + b with W of [in, out], the layout of GPT-2's files."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Linear(dim, 3 * dim), Linear(dim, dim)

    def forward(self, x):
        heads = [part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                 for part in self.c_attn(x).chunk(3, dim=2)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.c_fc, self.c_proj = Linear(dim, 4 * dim), Linear(4 * dim, dim)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.ln_2, self.mlp = nn.LayerNorm(dim), MLP(dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Returns the loss of the next token. tokens: [rows, length + 1]."""

    def __init__(self, vocab, positions, dim, layers, heads):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, dim), "wpe": nn.Embedding(positions, dim),
            "h": nn.ModuleList(Block(dim, heads) for _ in range(layers)),
            "ln_f": nn.LayerNorm(dim)})
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        for name in ("wte", "wpe"):
            nn.init.normal_(self.transformer[name].weight, std=0.02)
        self.lm_head.weight = self.transformer["wte"].weight  # tied

    def forward(self, tokens):
        parts = self.transformer
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = parts["wte"](inputs) + parts["wpe"](torch.arange(inputs.shape[1], device=tokens.device))
        for block in parts["h"]:
            x = block(x)
        logits = self.lm_head(parts["ln_f"](x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def flags():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="text file; a token is a byte")
    parser.add_argument("--tokens", help=".npy file, int32 [steps, rows, length + 1]")
    for name, default in (("layers", 2), ("dim", 64), ("heads", 4), ("vocab", 256),
                          ("positions", 64), ("rows", 8), ("steps", 100), ("lr", 1e-3),
                          ("grad_clip", 1.0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    for name in ("init_from", "resume", "save", "export", "metrics"):
        parser.add_argument(f"--{name}", metavar="PATH")
    return parser.parse_args()


def batches(args):
    """Returns a function of the step that gives all its rows, [rows, length + 1]."""
    if args.tokens:
        tokens = torch.from_numpy(numpy.load(args.tokens)).long()
        return lambda step: tokens[step]
    text = torch.from_numpy(numpy.fromfile(args.data, dtype=numpy.uint8)).long()

    def batch(step):
        random = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - args.positions, (args.rows,), generator=random)
        return torch.stack([text[start:start + args.positions + 1] for start in starts])

    return batch


def main():
    args = flags()
    runtime = acc.Runtime()
    torch.manual_seed(0)
    model = GPT(args.vocab, args.positions, args.dim, args.layers, args.heads)
    acc.fully_shard(model, runtime, weight_decay=lambda name, value: value.dim() > 1)
    optimizer = acc.AdamW(model, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer.clip_norm = args.grad_clip
    if args.init_from:
        acc.load_weights(model, args.init_from)
    if args.resume:
        runtime.load(args.resume, model, optimizer)
    metrics = open(args.metrics, "w") if args.metrics and runtime.rank == 0 else None
    batch, micro_steps = batches(args), runtime.gradient_accumulation_steps
    for step in range(optimizer.steps, args.steps):
        mine = batch(step).tensor_split(runtime.world_size)[runtime.rank].to(runtime.device)
        total = 0.0
        for part in mine.tensor_split(micro_steps):
            loss = model(part)
            optimizer.scale(loss).backward()
            total += loss.item() / micro_steps
        norm, loss = optimizer.step().grad_norm, runtime.mean(total)
        runtime.report({"loss": loss})
        if metrics:
            print(json.dumps({"step": step, "loss": loss, "grad_norm": norm}), file=metrics)
        if runtime.rank == 0 and (step + 1) % max(1, args.steps // 10) == 0:
            print(f"step {step + 1}, loss {loss:.4f}", flush=True)
    if args.save:
        runtime.save(args.save, model, optimizer)
    if args.export:
        acc.export_weights(model, args.export)


if __name__ == "__main__":
    main()
