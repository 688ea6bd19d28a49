# SPDX-License-Identifier: Apache-2.0
"""PyTorch's measurements for scripts/gpu_check. Each command prints one JSON object.

    python torch_peers.py matmul
    python torch_peers.py adamw --numel N
    torchrun --nproc-per-node GPUS torch_peers.py collectives --bytes N --calls C
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist


def seconds(function, repeats):
    """Mean time of a call over `repeats` calls, after three calls of warm-up."""
    for _ in range(3):
        function()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def matmul(_):
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return {"tflops": 2 * size**3 / seconds(lambda: torch.mm(a, b, out=out), 20) / 1e12}


def adamw(args):
    """torch's fused AdamW with fp32 weights and gradients, without a bf16 copy."""
    weight = torch.nn.Parameter(torch.randn(args.numel, device="cuda"))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.1, fused=True)
    return {"adamw_s": seconds(optimizer.step, 10)}


def collectives(args):
    """Mean time per NCCL call, measured like ours in bench/gpu/group_bench.cpp."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    full = torch.zeros(args.bytes // 4 // world * world, device="cuda")
    part = torch.zeros(full.numel() // world, device="cuda")
    calls = {"all_gather": lambda: dist.all_gather_into_tensor(full, part),
             "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full),
             "all_reduce": lambda: dist.all_reduce(full)}
    result = {}
    for name, call in calls.items():
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(args.calls):
            call()
        torch.cuda.synchronize()
        result[name] = (time.perf_counter() - begin) / args.calls * 1e6
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank != 0:
        sys.exit(0)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("matmul").set_defaults(run=matmul)
    update = commands.add_parser("adamw")
    update.add_argument("--numel", type=int, default=1 << 28)
    update.set_defaults(run=adamw)
    group = commands.add_parser("collectives")
    group.add_argument("--bytes", type=int, default=64 << 20)
    group.add_argument("--calls", type=int, default=20)
    group.set_defaults(run=collectives)
    args = parser.parse_args()
    print(json.dumps(args.run(args)))


if __name__ == "__main__":
    main()
