"""Writes golden.json: weights after each step of torch.optim.AdamW and SGD, and of DeepSpeed's Lion on the CPU,
with clipped gradients.

    python make_golden.py > golden.json

Each case: settings, initial weights, and for every step the raw gradient, the scale that is applied
to it first, and the weights afterwards. Values survive JSON exactly (fp32 printed with 9 digits).
"""
import json
import platform

import deepspeed
import torch
from deepspeed.ops.lion import DeepSpeedCPULion

STEPS, NUMEL = 4, 19


def train(optimizer_class, settings):
    generator = torch.Generator().manual_seed(7)
    weight = torch.nn.Parameter(torch.randn(NUMEL, generator=generator))
    initial = weight.detach().tolist()
    optimizer = optimizer_class([weight], **settings)
    steps = []
    for step in range(STEPS):
        grad = torch.randn(NUMEL, generator=generator) * 10.0 ** (-step)
        scale = [1.0, 0.5, 0.37, 1.0][step]
        weight.grad = grad * scale
        optimizer.step()
        steps.append({"grad": grad.tolist(), "grad_scale": scale,
                      "weights": weight.detach().tolist()})
    return {"initial": initial, "steps": steps}


def main():
    adamw = [
        {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 1e-2},
        {"lr": 3e-2, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1},
        {"lr": 1e-2, "betas": [0.8, 0.99], "eps": 1e-3, "weight_decay": 0.0},
    ]
    sgd = [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.05},
        {"lr": 0.05, "momentum": 0.9},
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ]
    lion = [
        {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1},
        {"lr": 3e-2, "betas": [0.8, 0.97], "weight_decay": 0.0},
    ]
    print(json.dumps({
        "made_by": f"make_golden.py, torch {torch.__version__}, DeepSpeed {deepspeed.__version__}, "
                   f"Python {platform.python_version()}",
        "cases": [{"rule": rule, "settings": settings} | train(optimizer, settings | options)
                  for rule, optimizer, options, all_settings in (
                      ("adamw", torch.optim.AdamW, {"foreach": False}, adamw),
                      ("sgd", torch.optim.SGD, {"foreach": False}, sgd),
                      ("lion", DeepSpeedCPULion, {}, lion))
                  for settings in all_settings],
    }, indent=1))


if __name__ == "__main__":
    main()
