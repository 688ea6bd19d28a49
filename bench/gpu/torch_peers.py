"""PyTorch's own figures for scripts/gpu_check; each command prints one JSON object.

    python torch_peers.py matmul
    python torch_peers.py adamw --numel N
"""
import argparse
import json

import torch


def seconds(function, repeats):
    """Time of one call, over `repeats` calls after three that do not count."""
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
    """fp32 weights and gradients, as torch's fused update takes them; no bf16 copy."""
    weight = torch.nn.Parameter(torch.randn(args.numel, device="cuda"))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.1, fused=True)
    return {"adamw_s": seconds(optimizer.step, 10)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("matmul").set_defaults(run=matmul)
    update = commands.add_parser("adamw")
    update.add_argument("--numel", type=int, default=1 << 28)
    update.set_defaults(run=adamw)
    args = parser.parse_args()
    print(json.dumps(args.run(args)))


if __name__ == "__main__":
    main()
