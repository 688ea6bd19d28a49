# SPDX-License-Identifier: Apache-2.0
"""The peer of train_gpt: the same GPT-2-shaped model, trained by PyTorch.

    python torch_gpt.py --mode plain|compile|fsdp2|fsdp2+compile --layers 12 --heads 12 --dim 768 \
        --vocab 50304 --seq_len 1024 --micro_batch 32,4 --sdpa auto,flash --steps 20 --warmup 5

Under acclaunch, the modes acc and acc+compile shard the model with the package acclaunch instead.
Prints one JSON object for each micro-batch with each back end of attention: tokens/s (median of the
steps after --warmup), peak memory, FLOP per token and the losses, or the error. Master weights are
fp32 and matrix products bf16, by autocast or by FSDP2's mixed precision. Runs on
one device or, under torchrun, on one device per rank.
"""
import argparse
import contextlib
import gc
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from names import some_of  # noqa: E402

MODES = ("plain", "compile", "fsdp2", "fsdp2+compile", "acc", "acc+compile")
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION",
            "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}  # auto: torch's choice


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)

    def forward(self, z):
        batch, time_, dim = z.shape
        qkv = self.c_attn(z).view(batch, time_, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(out.transpose(1, 2).reshape(batch, time_, dim))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.c_fc, self.c_proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2; the head shares the token embedding."""

    def __init__(self, args):
        super().__init__()
        self.wte = nn.Embedding(args.vocab, args.dim)
        self.wpe = nn.Embedding(args.seq_len, args.dim)
        self.blocks = nn.ModuleList(Block(args.dim, args.heads) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.dim)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                into_residual = name.endswith("c_proj.weight")
                nn.init.normal_(weight, std=0.02 / ((2 * args.layers) ** 0.5 if into_residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, inputs, targets):
        x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.ln_f(x), targets)

    def loss(self, z, targets):
        logits = F.linear(z, self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def flops_per_token(args):
    """FLOP of matrix products per token, forward and backward; attention without causal mask."""
    weights = args.layers * 12 * args.dim**2 + args.vocab * args.dim
    return 6 * weights + 12 * args.layers * args.seq_len * args.dim


def join_group(device):
    if dist.is_initialized():
        return
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    else:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=0, world_size=1,
                                store=dist.HashStore())


def shard(model, compiled):
    """Applies FSDP2 to blocks and root, like the runtime's units; compiles block by block."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if compiled:
        model.loss = torch.compile(model.loss)
    for block in model.blocks:
        if compiled:
            block.compile()
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def shard_by_acclaunch(model, args):
    """Returns the optimizer of a model that the package acclaunch shards; it clips in its step."""
    import acclaunch.torch as acc
    args.runtime = args.runtime or acc.Runtime()
    acc.fully_shard(model, args.runtime, weight_decay=lambda name, value: value.dim() > 1)
    if args.mode.endswith("compile"):
        model.loss = torch.compile(model.loss)
        for block in model.blocks:
            block.compile()
    optimizer = acc.AdamW(model, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    optimizer.clip_norm = args.grad_clip
    return optimizer


def prepare(args, device):
    """(model, context manager for its forward, optimizer)"""
    torch.manual_seed(args.seed)
    model = Gpt(args)
    if args.mode.startswith("acc"):
        return model, contextlib.nullcontext, shard_by_acclaunch(model, args)
    model.to(device)
    autocast = lambda: torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bf16")
    if args.mode.startswith("fsdp2"):
        join_group(device)
        model, autocast = shard(model, args.mode.endswith("compile")), contextlib.nullcontext
    optimizer = adamw(model, args, device)
    return torch.compile(model) if args.mode == "compile" else model, autocast, optimizer


def adamw(model, args, device):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                              {"params": others, "weight_decay": 0.0}],
                             lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=device.type == "cuda")


class Clock:
    """Step times from CUDA events, so the host does not wait for the GPU between steps."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.marks = []

    def mark(self):
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        if not self.cuda:
            return [end - begin for begin, end in zip(self.marks, self.marks[1:])]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in zip(self.marks, self.marks[1:])]


def attention_by(name):
    """A context in which attention uses one back end only."""
    if name == "auto":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([getattr(SDPBackend, BACKENDS[name])])


def train(args, device):
    model, autocast, optimizer = prepare(args, device)
    generator = torch.Generator(device).manual_seed(args.seed)
    shape = (args.micro_batch, args.seq_len + 1)
    clock, losses = Clock(device), []
    clock.mark()
    for _ in range(args.steps):
        tokens = torch.randint(args.vocab, shape, device=device, generator=generator)
        with autocast():
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        if args.runtime is None:
            nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        clock.mark()
    return clock.seconds(), [round(float(loss), 5) for loss in losses], model


def measure(args, device):
    seconds, losses, model = train(args, device)
    counted = seconds[args.warmup:] or seconds[-1:]
    world = int(os.environ.get("WORLD_SIZE", 1))
    tokens_per_s = args.micro_batch * args.seq_len * world / statistics.median(counted)
    cuda = device.type == "cuda"
    own = 0  # of acclaunch, besides torch's
    if args.runtime is not None:
        import acclaunch.torch as acc
        own = acc.memory_report(model)["device_peak_bytes"]
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps({
            "mode": args.mode, "sdpa": args.sdpa, "micro_batch": args.micro_batch,
            "torch": torch.__version__, "tokens_per_s": tokens_per_s,
            "flops_per_token": flops_per_token(args),
            "peak_bytes": torch.cuda.max_memory_allocated() + own if cuda else None,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
            "losses": losses}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="plain")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16",
                        help="of plain and compile; FSDP2 is bf16")
    for name, default in (("layers", 12), ("heads", 12), ("dim", 768), ("vocab", 50304),
                          ("seq_len", 1024), ("steps", 20), ("warmup", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro_batch", default="32", dest="micro_batches",
                        type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--sdpa", default="auto", dest="backends",
                        type=some_of(("auto", *BACKENDS)))
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--grad_clip", type=float, default=1.0)
    parser.set_defaults(runtime=None)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))

    for args.sdpa in args.backends:
        for args.micro_batch in args.micro_batches:
            try:
                with attention_by(args.sdpa):
                    measure(args, device)
            except RuntimeError as error:  # no such kernel, or out of memory: others may work
                print(json.dumps({"mode": args.mode, "sdpa": args.sdpa,
                                  "micro_batch": args.micro_batch, "error": str(error)[:300]}),
                      flush=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
