"""Writes groups.json: some steps of torch.optim.AdamW with parameter groups of their own learning
rate and weight decay, a warmup and linear decay of the rates, gradients clipped by value and then by
norm.

    python make_groups.py > groups.json

Gradients are those of the test: sin(index + 3 * step) + 0.5 * weight, scaled by 10 for the head.
"""
import json
import math

import torch

STEPS, WARMUP, TOTAL = 8, 2, 8
CLIP_VALUE, CLIP_NORM = 0.9, 2.5
SIZES = {"embedding": 39, "layer.weight": 77, "layer.bias": 5, "head": 21}


def rate(step):
    if step < WARMUP:
        return step / max(1, WARMUP)
    return max(0.0, (TOTAL - step) / max(1, TOTAL - WARMUP))


def main():
    generator = torch.Generator().manual_seed(11)
    weights = {name: torch.nn.Parameter(torch.randn(numel, generator=generator))
               for name, numel in SIZES.items()}
    initial = {name: w.detach().tolist() for name, w in weights.items()}
    optimizer = torch.optim.AdamW([
        {"params": [weights["embedding"]]},
        {"params": [weights["layer.weight"], weights["layer.bias"]], "lr": 0.02,
         "weight_decay": 0.2},
        {"params": [weights["head"]], "lr": 0.003},
    ], lr=0.01, weight_decay=0.05, foreach=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    norms = []
    for step in range(STEPS):
        for name, weight in weights.items():
            wave = torch.tensor([math.sin(i + 3 * step) for i in range(weight.numel())])
            factor = 10.0 if name == "head" else 1.0
            weight.grad = factor * (wave + 0.5 * weight.detach())
        norms.append(math.sqrt(sum(w.grad.double().square().sum().item()
                                   for w in weights.values())))
        torch.nn.utils.clip_grad_value_(weights.values(), CLIP_VALUE, foreach=False)
        torch.nn.utils.clip_grad_norm_(weights.values(), CLIP_NORM, foreach=False)
        optimizer.step()
        scheduler.step()
    print(json.dumps({
        "made_by": f"make_groups.py, torch {torch.__version__}",
        "steps": STEPS, "warmup": WARMUP, "total": TOTAL,
        "clip_value": CLIP_VALUE, "clip_norm": CLIP_NORM,
        "initial": initial,
        "norms": norms,
        "weights": {name: w.detach().tolist() for name, w in weights.items()},
    }, indent=None, separators=(",", ":")).replace('],"', '],\n"'))


if __name__ == "__main__":
    main()
