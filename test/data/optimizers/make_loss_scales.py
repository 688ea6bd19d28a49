"""Writes loss_scales.json: the scale before each step over sequences of clean (0) and overflowing
(1) steps, by torch.amp.GradScaler's own update and by DeepSpeed's DynamicLossScaler.

    python make_loss_scales.py DEEPSPEED > loss_scales.json   (folder: see peers.py)

A sequence ends with "error": true where the rule refuses to go on.
"""
import json
import random
import sys

import torch

import peers


def sequences():
    draw = random.Random(3)
    yield [0] * 20
    yield [1] * 12
    yield [0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    for _ in range(3):
        yield [int(draw.random() < 0.3) for _ in range(40)]


def grad_scaler(overflows, power, window):
    scale = torch.tensor(2.0 ** power)
    tracker = torch.zeros((), dtype=torch.int32)
    scales = []
    for overflow in overflows:
        scales.append(scale.item())
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(overflow)), 2.0, 0.5, window)
    return {"scales": [*scales, scale.item()], "error": False}


def dynamic(scaler, overflows):
    scales = []
    for overflow in overflows:
        scales.append(float(scaler.cur_scale))
        try:
            scaler.update_scale(bool(overflow))
        except Exception:  # its own type is Exception
            return {"scales": scales, "error": True}
    return {"scales": [*scales, float(scaler.cur_scale)], "error": False}


def main():
    module = peers.deepspeed_file(sys.argv[1], "runtime/fp16/loss_scaler.py")
    cases = []
    for overflows in sequences():
        for power, window in ((16, 3), (126, 2), (4, 1)):
            cases.append({"rule": "grad_scaler", "power": power, "window": window,
                          "overflows": overflows, **grad_scaler(overflows, power, window)})
        for power, window, hysteresis, refill, floor in (
                (16, 3, 2, False, 1.0), (16, 3, 2, True, 1.0), (16, 4, 1, False, 1.0),
                (4, 2, 2, False, 1.0), (3, 2, 3, True, 0.25), (4, 3, 1, False, 3.0)):
            scaler = module.DynamicLossScaler(
                init_scale=2 ** power, scale_window=window, min_scale=floor,
                delayed_shift=hysteresis, consecutive_hysteresis=refill)
            cases.append({"rule": "deepspeed", "power": power, "window": window,
                          "hysteresis": hysteresis, "consecutive_hysteresis": refill,
                          "min_scale": floor, "overflows": overflows,
                          **dynamic(scaler, overflows)})
    print(json.dumps({
        "made_by": f"make_loss_scales.py, torch {torch.__version__}, DeepSpeed 0.19.8",
        "cases": cases,
    }, separators=(",", ":")).replace('{"rule"', '\n{"rule"'))


if __name__ == "__main__":
    main()
