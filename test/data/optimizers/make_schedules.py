"""Writes schedules.json: the learning rate of each step under the schedules of transformers and
DeepSpeed, as their own code gives it to an optimizer.

    python make_schedules.py DEEPSPEED TRANSFORMERS > schedules.json   (folders: see peers.py)
"""
import functools
import json
import sys

import torch

import peers

BASE = 0.02
STEPS = 24


def rates(make_scheduler):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    scheduler = make_scheduler(optimizer)
    result = []
    for _ in range(STEPS):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return result


def transformers_cases(root):
    lambdas = peers.transformers_lambdas(root)
    names = {"constant": "_get_constant_schedule_with_warmup_lr_lambda",
             "linear": "_get_linear_schedule_with_warmup_lr_lambda",
             "cosine": "_get_cosine_schedule_with_warmup_lr_lambda"}
    cases = [("constant", {"num_warmup_steps": w}) for w in (0, 1, 5)]
    for warmup, total in ((0, 20), (4, 20), (6, 6), (10, 4)):
        both = {"num_warmup_steps": warmup, "num_training_steps": total}
        cases.append(("linear", both))
        cases += [("cosine", both | {"num_cycles": cycles}) for cycles in (0.5, 1.5)]
    for kind, arguments in cases:
        rule = functools.partial(lambdas[names[kind]], **arguments)
        yield {"type": kind, "arguments": arguments,
               "lr": rates(lambda o, r=rule: torch.optim.lr_scheduler.LambdaLR(o, r))}


def deepspeed_cases(root):
    module = peers.deepspeed_file(root, "runtime/lr_schedules.py")
    cases = []
    for shape in ("log", "linear"):
        for warmup in (1, 2, 8):
            common = {"warmup_num_steps": warmup, "warmup_type": shape}
            cases += [
                ("WarmupLR", common),
                ("WarmupLR", common | {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01}),
                ("WarmupDecayLR", common | {"total_num_steps": 20}),
                ("WarmupDecayLR", common | {"total_num_steps": 20, "warmup_min_lr": 0.002,
                                            "warmup_max_lr": 0.03}),
                ("WarmupDecayLR", common | {"total_num_steps": 5}),
                ("WarmupCosineLR", common | {"total_num_steps": 20}),
                ("WarmupCosineLR", common | {"total_num_steps": 18, "warmup_min_ratio": 0.1,
                                             "cos_min_ratio": 0.05}),
                ("WarmupCosineLR", common | {"total_num_steps": 2}),
            ]
    cases.append(("WarmupLR", {}))
    for kind, arguments in cases:
        rule = functools.partial(getattr(module, kind), **arguments)
        yield {"type": kind, "arguments": arguments, "lr": rates(rule)}


def main():
    deepspeed, transformers = sys.argv[1:]
    print(json.dumps({
        "made_by": f"make_schedules.py, torch {torch.__version__}, DeepSpeed 0.19.8, "
                   "transformers 5.23.0",
        "base": BASE,
        "cases": [*transformers_cases(transformers), *deepspeed_cases(deepspeed)],
    }, indent=None, separators=(",", ":")).replace('{"type"', '\n{"type"'))


if __name__ == "__main__":
    main()
