# SPDX-License-Identifier: Apache-2.0
"""The steps of Muon and of AdamW, also with states in 8 bits, with acclaunch.torch, and of torch.optim.Muon on whole
matrices, as data parallel training makes it on each rank. In the same processes, in turn, FULL_SHARD.

    python bench/optimizers.py [--acclaunch build/release/bin/acclaunch] [--package build/release/python]
                               [--python PYTHON] [--workers 2] [--rounds 5] [--tokens 256] [--layers 6] [--size 512]
                               [--only AdamW]

PYTHON needs torch. Prints the median of the milliseconds of rank 0: of optimizer.step() alone, its CPU time, which
other programs change less, and of the step with a forward and a backward of that number of tokens per rank. The
embedding and the last layer are AdamW's. --only: those whose names begin so, and AdamW.
"""
import json
import os
import statistics
import sys
import time

from launchers import json_lines
from names import PYTHON, Options

WORDS = 4096


def model_of(layers, size):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
            self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
            x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
            return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(WORDS, size), nn.Linear(size, WORDS, bias=False)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))

        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())

    torch.manual_seed(1)
    return Net(), Block


class Both:
    """torch's Muon and its AdamW for the other parameters."""

    def __init__(self, model):
        import torch

        named = list(model.named_parameters())
        inner = [each for name, each in named if name.startswith("blocks.") and each.dim() == 2]
        others = [each for name, each in named if not (name.startswith("blocks.") and each.dim() == 2)]
        self.parts = torch.optim.Muon(inner), torch.optim.AdamW(others, fused=True)

    def step(self):
        for each in self.parts:
            each.step()
        for each in self.parts:
            each.zero_grad()


def worker(args):
    import acclaunch.torch as acc
    import torch

    torch.set_num_threads(1)
    runtime = acc.Runtime()
    makers = {
        "AdamW": lambda model: acc.AdamW(model),
        "AdamW, 8 bits": lambda model: acc.AdamW(model, states_8bit=True),
        "Muon": lambda model: acc.Muon(model, groups=[
            {"params": ["embedding.*", "head.*"], "name": "others", "matrices": False}]),
        "torch.optim.Muon": Both,
    }
    trained = {}
    for name, make in makers.items():
        if name != "AdamW" and not name.startswith(args.only):
            continue
        model, block = model_of(args.layers, args.size)
        if name != "torch.optim.Muon":
            acc.fully_shard(model, runtime, units=[block])
        trained[name] = model, make(model)
    parameters = sum(each.numel() for each in model.parameters())
    ids = torch.randint(WORDS, (1, args.tokens), generator=torch.Generator().manual_seed(runtime.rank))
    times = {name: ([], [], []) for name in trained}
    for number in range(args.rounds + 1):
        for name, (model, optimizer) in trained.items():
            runtime.barrier()
            begin = time.perf_counter()
            model(ids).backward()
            runtime.barrier()
            middle, cpu = time.perf_counter(), time.process_time()
            optimizer.step()
            cpu = time.process_time() - cpu
            runtime.barrier()
            end = time.perf_counter()
            if number > 0:
                for kept, value in zip(times[name], (end - middle, cpu, end - begin)):
                    kept.append(value)
    if runtime.rank == 0:
        print(json.dumps({"parameters": parameters, "ms": {
            name: [1e3 * statistics.median(each) for each in all_of] for name, all_of in times.items()}}), flush=True)


def main():
    args = Options(__doc__, acclaunch="build/release/bin/acclaunch", package="build/release/python", python=PYTHON,
                   workers=2, rounds=5, tokens=256, layers=6, size=512, only="").parse_args()
    if "RANK" in os.environ:
        return worker(args)
    command = [args.acclaunch, "--cpu", "--use_fsdp", "--num_processes", args.workers, __file__, *sys.argv[1:]]
    found = json_lines(command, PYTHONPATH=args.package, PYTHON_EXEC=args.python, OMP_NUM_THREADS="1")[-1]
    print(f"{found['parameters'] / 1e6:.1f} M parameters, {args.workers} workers, {args.tokens} tokens per rank")
    print(f"{'':<18} {'step() ms':>10} {'of AdamW':>9} {'CPU ms':>8} {'of AdamW':>9}   "
          f"{'with forward and backward':>25} {'of AdamW':>9}")
    base = found["ms"]["AdamW"]
    for name, (step, cpu, whole) in found["ms"].items():
        print(f"{name:<18} {step:10.1f} {step / base[0]:8.2f}x {cpu:8.1f} {cpu / base[1]:8.2f}x   {whole:25.1f} "
              f"{whole / base[2]:8.2f}x")


if __name__ == "__main__":
    main()
