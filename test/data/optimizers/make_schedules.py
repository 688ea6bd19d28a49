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


def steps(make_scheduler, optimizer_class=torch.optim.SGD):
    """The group of the optimizer in each step."""
    optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    scheduler = make_scheduler(optimizer)
    for _ in range(STEPS):
        yield optimizer.param_groups[0]
        optimizer.step()
        scheduler.step()


def rates(make_scheduler):
    return [group["lr"] for group in steps(make_scheduler)]


def transformers_cases(root):
    lambdas = peers.transformers_lambdas(root)
    names = {"constant": "_get_constant_schedule_with_warmup_lr_lambda",
             "linear": "_get_linear_schedule_with_warmup_lr_lambda",
             "cosine": "_get_cosine_schedule_with_warmup_lr_lambda",
             "cosine_with_restarts": "_get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda",
             "polynomial": "_get_polynomial_decay_schedule_with_warmup_lr_lambda",
             "inverse_sqrt": "_get_inverse_sqrt_schedule_lr_lambda",
             "warmup_stable_decay": "_get_wsd_scheduler_lambda"}
    cases = [("constant", {"num_warmup_steps": w}) for w in (0, 1, 5)]
    for warmup, total in ((0, 20), (4, 20), (6, 6), (10, 4)):
        both = {"num_warmup_steps": warmup, "num_training_steps": total}
        cases.append(("linear", both))
        cases += [("cosine", both | {"num_cycles": cycles}) for cycles in (0.5, 1.5)]
    for warmup, total in ((0, 20), (4, 20), (6, 6)):
        both = {"num_warmup_steps": warmup, "num_training_steps": total}
        cases += [("cosine_with_restarts", both | {"num_cycles": cycles}) for cycles in (1, 3)]
        if total > warmup:  # else transformers divides by zero
            cases += [("polynomial", both | {"lr_end": 1e-7, "power": 1.0}),
                      ("polynomial", both | {"lr_end": 0.003, "power": 2.5})]
    cases += [("inverse_sqrt", {"num_warmup_steps": 4, "timescale": 4}),
              ("inverse_sqrt", {"num_warmup_steps": 3, "timescale": 7}),
              ("inverse_sqrt", {"num_warmup_steps": 0, "timescale": 10_000})]
    for rises, falls in (("linear", "cosine"), ("cosine", "linear"), ("1-sqrt", "1-sqrt")):
        cases.append(("warmup_stable_decay", {
            "num_warmup_steps": 5, "num_stable_steps": 6, "num_decay_steps": 8, "warmup_type": rises,
            "decay_type": falls, "min_lr_ratio": 0.1, "num_cycles": 0.5}))
    for kind, arguments in cases:
        more = {"lr_init": BASE} if kind == "polynomial" else {}
        rule = functools.partial(lambdas[names[kind]], **arguments, **more)
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
    cases += [("LRRangeTest", {}), ("LRRangeTest", {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 5}),
              ("LRRangeTest", {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 5,
                               "lr_range_test_step_rate": 3.0, "lr_range_test_staircase": True})]
    ends = {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01}
    cycles = [ends | {"cycle_first_step_size": 5},
              ends | {"cycle_first_step_size": 6, "cycle_second_step_size": 9, "cycle_first_stair_count": 3,
                      "cycle_second_stair_count": 2, "decay_step_size": 4, "decay_lr_rate": 0.5},
              ends | {"cycle_first_step_size": 4, "cycle_second_step_size": 8, "cycle_min_mom": 0.5,
                      "cycle_max_mom": 0.75, "decay_step_size": 2, "decay_lr_rate": 0.25, "decay_mom_rate": 0.01}]
    cases += [("OneCycle", each) for each in cycles]
    for kind, arguments in cases:
        rule = functools.partial(getattr(module, kind), **arguments)
        betas = {} if kind != "OneCycle" else {
            "betas": [list(group["betas"]) for group in steps(rule, torch.optim.Adam)]}
        yield {"type": kind, "arguments": arguments, "lr": rates(rule), **betas}


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
