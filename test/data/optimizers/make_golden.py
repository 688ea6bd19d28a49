"""Writes golden.json: weights after each step of optimizers of torch.optim, of DeepSpeed's Lion on the CPU, and of the
formula of DeepSpeed's Adam without bias correction, with clipped gradients.

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


class UncorrectedAdam:
    """DeepSpeed's Adam (csrc/adam/multi_tensor_adam.cu of 0.19.8) with bias_correction false. decoupled: mode 1."""

    def __init__(self, parameters, lr, betas, eps, weight_decay, bias_correction, decoupled):
        assert not bias_correction
        self.weight, = parameters
        self.settings = lr, *betas, eps, weight_decay, decoupled
        self.m, self.v = torch.zeros_like(self.weight), torch.zeros_like(self.weight)

    @torch.no_grad()
    def step(self):
        lr, beta1, beta2, eps, decay, decoupled = self.settings
        grad = self.weight.grad if decoupled else self.weight.grad + decay * self.weight
        self.m.mul_(beta1).add_(grad, alpha=1 - beta1)
        self.v.mul_(beta2).add_(grad * grad, alpha=1 - beta2)
        update = self.m / (self.v.sqrt() + eps)
        self.weight -= lr * (update + decay * self.weight if decoupled else update)


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
    adam = [
        {"lr": 3e-2, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1},
        {"lr": 3e-2, "betas": [0.8, 0.5], "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True},
    ]
    amsgrad = [{"lr": 3e-2, "betas": [0.9, 0.5], "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}]
    uncorrected = [{"lr": 3e-2, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1, "bias_correction": False}]
    nadam = [
        {"lr": 2e-3},
        {"lr": 3e-2, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1, "momentum_decay": 0.5},
        {"lr": 3e-2, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ]
    adagrad = [{"lr": 1e-2}, {"lr": 0.1, "lr_decay": 0.3, "eps": 1e-3, "weight_decay": 0.1}]
    rmsprop = [
        {"lr": 1e-2},
        {"lr": 1e-2, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1},
        {"lr": 1e-2, "alpha": 0.9, "eps": 1e-2, "centered": True},
        {"lr": 1e-2, "alpha": 0.9, "eps": 1e-2, "momentum": 0.8, "centered": True, "weight_decay": 0.1},
    ]
    plain = {"foreach": False}
    print(json.dumps({
        "made_by": f"make_golden.py, torch {torch.__version__}, DeepSpeed {deepspeed.__version__}, "
                   f"Python {platform.python_version()}",
        "cases": [{"rule": rule, "settings": settings} | train(optimizer, settings | options)
                  for rule, optimizer, options, all_settings in (
                      ("adamw", torch.optim.AdamW, plain, adamw),
                      ("sgd", torch.optim.SGD, plain, sgd),
                      ("lion", DeepSpeedCPULion, {}, lion),
                      ("adam", torch.optim.Adam, plain, adam),
                      ("adamw", torch.optim.AdamW, plain, amsgrad),
                      ("adamw", UncorrectedAdam, {"decoupled": True}, uncorrected),
                      ("adam", UncorrectedAdam, {"decoupled": False}, uncorrected),
                      ("nadam", torch.optim.NAdam, plain, nadam),
                      ("adagrad", torch.optim.Adagrad, plain, adagrad),
                      ("rmsprop", torch.optim.RMSprop, plain, rmsprop))
                  for settings in all_settings],
    }, indent=1))


if __name__ == "__main__":
    main()
