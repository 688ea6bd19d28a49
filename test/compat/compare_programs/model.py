# SPDX-License-Identifier: Apache-2.0
"""A small transformer, its data, and the options of the programs that `acclaunch compare` is tested with."""

import os
import types

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WORDS, SIZE, HEADS, LENGTH = 61, 16, 2, 9
PADDING = -100  # label that does not count

# Words of the variable TRAIN: the framework, and name=value for other values than these.
DEFAULTS = {
    "micro_steps": 1, "steps": 6, "rows": 8, "samples": 48, "padding": 0, "dropout": 0.0, "tied": 0, "norm": "layer",
    "running_mean": 0, "adapters": 0, "auxiliary": 0, "checkpoint": 0, "weights": "float32", "compute": "float32",
    "reduce": "float32", "optimizer": "adamw", "lr": 1e-2, "implementation": "", "decay": "groups", "schedule": 0,
    "clip": 0.3, "evaluate": 0, "stage": 2, "orig_params": 1, "strategy": "", "reshard": 1, "offload": 0, "prefetch": 0,
    "buckets": 0, "static_graph": 0, "unused": 0, "blocks": 2, "wrap": "blocks",
}


def read_options(text):
    framework, *others = text.split()
    values = dict(each.split("=") for each in others)
    assert values.keys() <= DEFAULTS.keys(), values.keys() - DEFAULTS.keys()
    return types.SimpleNamespace(framework=framework, **{
        name: type(default)(values.get(name, default)) for name, default in DEFAULTS.items()})


def wrong(name):
    """True if this run has the mistake of that name (table.py)."""
    return os.environ.get("MISTAKE") == name


def ranks():
    return int(os.environ.get("WORLD_SIZE", 1))


def rank():
    return int(os.environ.get("RANK", 0))


# ---- model -------------------------------------------------------------------------------------------


class RunningMean(nn.Module):
    """Subtracts the running mean of all that it has seen on all ranks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(SIZE))

    def forward(self, x):
        if self.training:
            mean = x.detach().mean((0, 1))
            if dist.is_initialized() and not wrong("buffer_of_one_rank"):
                dist.all_reduce(mean)
                mean /= ranks()
            self.mean.lerp_(mean.to(self.mean.dtype), 0.5)
        return x - self.mean


class ChannelNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def new_norm(o):
    return {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "batch": ChannelNorm}[o.norm](SIZE)


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.rate = o.dropout
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.norm_1, self.attention = new_norm(o), Attention(o)
        self.norm_2, self.up, self.down = new_norm(o), nn.Linear(SIZE, 3 * SIZE), nn.Linear(3 * SIZE, SIZE)
        self.dropout = nn.Dropout(o.dropout)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class Adapter(nn.Module):
    """A frozen layer with a trained product of two small matrices, as of LoRA."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Linear(base.in_features, 2, bias=False)
        self.b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.options = o
        self.embedding, self.positions = nn.Embedding(WORDS, SIZE), nn.Embedding(LENGTH, SIZE)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.blocks))
        self.norm = new_norm(o)
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        if o.running_mean:
            self.center = RunningMean()
        if o.unused:
            self.spare = nn.Linear(SIZE, SIZE)
        if o.tied:
            self.head.weight = self.embedding.weight
            if wrong("untied_after_loading"):
                self.head.weight = nn.Parameter(self.embedding.weight.detach().clone())
        if o.adapters:
            self.requires_grad_(False)
            self.norm.requires_grad_(True)
            for block in self.blocks:
                block.attention.qkv = Adapter(block.attention.qkv)
                block.down = Adapter(block.down)

    def forward(self, ids):
        x = self.embedding(ids) + self.positions.weight[:ids.shape[1]]
        for number, block in enumerate(self.blocks):
            x = self.run(block, x)
            if number == 0 and wrong("detached_features"):
                x = x.detach()
        if self.options.running_mean:
            x = self.center(x)
        return self.head(self.norm(x))

    def run(self, block, x):
        if not self.options.checkpoint:
            return block(x)
        from torch.utils.checkpoint import checkpoint
        if wrong("checkpoint_without_gradient"):  # reentrant: the input needs a gradient, and a frozen embedding has none
            return checkpoint(block, x, use_reentrant=True)
        return checkpoint(block, x, use_reentrant=False)


# ---- data --------------------------------------------------------------------------------------------


def dataset(o):
    """Rows of words, and their number of words, all the same without padding."""
    generator = torch.Generator().manual_seed(7)
    first = torch.randint(1, WORDS, (o.samples, 1), generator=generator)
    jumps = torch.randint(1, 4, (o.samples, LENGTH), generator=generator)
    ids = 1 + (first + jumps.cumsum(1)) % (WORDS - 1)
    lengths = torch.randint(3, LENGTH + 1, (o.samples,), generator=generator)
    return ids, lengths if o.padding else torch.full((o.samples,), LENGTH)


def indices_of_step(o, step):
    """The samples of all ranks and micro-steps in a step."""
    per_epoch = -(-o.samples // o.rows)
    if wrong("drop_last"):
        per_epoch = o.samples // o.rows
    epoch, place = divmod(step, per_epoch)
    seed = 0 if wrong("same_order_in_all_epochs") else epoch
    if wrong("own_order_of_ranks"):
        seed += 100 * rank()
    order = torch.randperm(o.samples, generator=torch.Generator().manual_seed(seed))
    if wrong("last_batch_completed"):
        order = order.repeat(2)
    return order[place * o.rows:(place + 1) * o.rows]


def batches_of_step(o, step):
    """The (ids, labels) of this rank's micro-steps, and the number of labels of all ranks and micro-steps."""
    ids, lengths = dataset(o)
    labels = ids.masked_fill(torch.arange(LENGTH) >= lengths[:, None], PADDING)
    ids = ids.masked_fill(labels == PADDING, 0)
    chosen = indices_of_step(o, step)
    parts = torch.tensor_split(chosen, ranks() * o.micro_steps)
    mine = parts[rank()::ranks()]
    if wrong("same_data_on_all_ranks"):
        mine = parts[:o.micro_steps]
    return [(ids[part, :-1], labels[part, 1:]) for part in mine], int((labels[chosen, 1:] != PADDING).sum())
