# SPDX-License-Identifier: Apache-2.0
"""torch_misuse_test.py ACCLAUNCH PACKAGE: mistakes in programs that use acclaunch.torch. Each raises one
exception that names the cause. Exits with 77 without torch."""

import copy
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from torch import nn
from torch.nn import functional as F


def sharded(acc, make=None, runtime=None, **options):
    made = (make or (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))))()
    return acc.fully_shard(made, runtime or acc.Runtime(), **options)


def loss(model):
    return model(torch.ones(2, 4)).sum()


def used_outside(acc):
    model = sharded(acc, units=[nn.Linear])
    F.linear(torch.ones(2, 4), model[0].weight)


def gradient_outside(acc):
    model = sharded(acc, units=[nn.Linear])
    kept = []
    forward = model[0].forward
    model[0].forward = lambda x: kept.append(model[0].weight) or forward(x)
    loss(model).backward()
    kept[0].sum().backward()


def added(acc):
    model = sharded(acc)
    model[0].register_parameter("more", nn.Parameter(torch.ones(4)))
    loss(model)


def exchanged(acc):
    model = sharded(acc)
    model[0] = nn.Linear(4, 4)
    loss(model)


def replaced(acc):
    model = sharded(acc)
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    loss(model)


def trained_later(acc):
    def make():
        made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        made[1].bias.requires_grad_(False)
        return made

    model = sharded(acc, make)
    model.requires_grad_(True)
    loss(model)


def frozen_part(acc):
    model = sharded(acc)
    optimizer = acc.AdamW(model)
    model[2].requires_grad_(False)
    loss(model).backward()
    optimizer.step()


def zero_grad_of_a_part(acc):
    model = sharded(acc)
    loss(model).backward()
    model[0].zero_grad()


def changed_in_forward(acc):
    model = sharded(acc, lambda: nn.Sequential(nn.Embedding(4, 4, max_norm=0.1), nn.Linear(4, 4)))
    model(torch.arange(4))


def backward_after_load(acc):
    model = sharded(acc)
    with tempfile.TemporaryDirectory() as folder:
        acc.export_weights(model, os.path.join(folder, "weights.safetensors"))
        first = loss(model)
        acc.load_weights(model, os.path.join(folder, "weights.safetensors"))
        first.backward()


def backward_after_step(acc):
    model = sharded(acc)
    optimizer = acc.SGD(model)
    first, second = loss(model), loss(model)
    first.backward()
    optimizer.step()
    second.backward()


def rejoined(acc, groups=False):
    """Without a launcher that replaces ranks, or in a program with process groups of torch."""
    runtime = acc.Runtime()
    model = sharded(acc, runtime=runtime)
    optimizer = acc.SGD(model)
    with tempfile.TemporaryDirectory() as folder:
        series = acc.CheckpointSeries(runtime, folder)
        assert not series.can_rejoin(acc.PeerLostError("lost")) and not series.can_rejoin(ValueError())
        if groups:
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            series.rejoin(model, optimizer)
        finally:
            if groups:
                torch.distributed.destroy_process_group()


def step_after_zero_grad(acc):
    model = sharded(acc)
    optimizer = acc.SGD(model)
    loss(model).backward()
    optimizer.zero_grad()
    unused = loss(model)
    optimizer.step()
    del unused


class Appending(nn.Module):
    """A block whose forward changes its argument."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, kept):
        kept.append(self.linear(x))
        return torch.stack(kept).tanh().sum(0)


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Appending()])

    def forward(self, x):
        return self.blocks[0](x, [])


def changing_argument(acc):
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_ACTIVATION_CHECKPOINTING": "true"}
    try:
        model = sharded(acc, WithCache)
    finally:
        del os.environ["ACCELERATE_USE_FSDP"], os.environ["FSDP_ACTIVATION_CHECKPOINTING"]
    loss(model).backward()


def torch_optimizer(acc):
    model = sharded(acc)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def second_order(acc):
    loss(sharded(acc)).backward(create_graph=True)


def gradient_penalty(acc):
    x = torch.ones(2, 4, requires_grad=True)
    torch.autograd.grad(sharded(acc)(x).sum(), x, create_graph=True)


def after_a_failed_backward(acc):
    model = sharded(acc)
    model[0].register_full_backward_hook(lambda *_: 1 / 0)
    try:
        loss(model).backward()
    except ZeroDivisionError:
        loss(model)


def unused_unit(acc):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            self.blocks[1](x)
            return self.blocks[0](x)

    model = sharded(acc, Unused)
    optimizer = acc.SGD(model)
    loss(model).backward()
    optimizer.step()


def too_many_micro_steps(acc):
    model = sharded(acc)
    loss(model).backward()
    loss(model).backward()


def rate_of_torch(acc):
    acc.TorchOptimizer(sharded(acc), torch.optim.Adam).lr = 0.1


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise TypeError("no closure")


def failing_rule(acc):
    model = sharded(acc)
    optimizer = acc.TorchOptimizer(model, Failing)
    loss(model).backward()
    optimizer.step()


def other_shards(acc):
    model = sharded(acc)
    optimizer = acc.TorchOptimizer(model, torch.optim.Adam)
    with tempfile.TemporaryDirectory() as folder:
        model.acc_model.runtime.save(f"{folder}/run", model, optimizer)
        other = sharded(acc)
        optimizer = acc.TorchOptimizer(other, torch.optim.Adam)
        optimizer._offsets[0] = 1  # as if another number of ranks had saved
        other.acc_model.runtime.load(f"{folder}/run", other, optimizer)


def clipped(acc):
    model = sharded(acc)
    loss(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def zeroed_from_outside(acc):
    model = nn.Sequential(sharded(acc))
    loss(model).backward()
    model.zero_grad()


def inner_zero_grad(acc):
    """Drops the gradients, so that the step has none."""
    model = sharded(acc)
    optimizer = acc.TorchOptimizer(model, torch.optim.Adam)
    loss(model).backward()
    optimizer.torch.zero_grad()
    unused = loss(model)
    optimizer.step()
    del unused


def inner_step(acc):
    model = sharded(acc)
    optimizer = acc.TorchOptimizer(model, torch.optim.Adam)
    loss(model).backward()
    optimizer.torch.step()


class Counter(nn.Module):
    """A parameter, a counter, and a state that torch's state dict calls extra."""

    def __init__(self, extra=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.extra = extra

    def forward(self, x):
        return x * self.weight

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def saving(state=None, change=None, make=lambda: nn.Linear(4, 4), of_rank=None):
    """Saves a sharded module. change: what is done with it first."""
    def save(acc):
        model = sharded(acc, make)
        if change:
            change(model)
        with tempfile.TemporaryDirectory() as folder:
            model.acc_model.runtime.save(f"{folder}/run", model, acc.SGD(model), state, of_rank)

    return save


def replaced_buffer(model):
    model.seen = model.seen.float()


def no_longer_shared():
    first, second = Counter(), Counter()
    second.seen = first.seen
    return nn.ModuleList([first, second])


def unshare(model):
    model[1].seen = model[1].seen + 1


def with_buffer(buffer, persistent=True):
    made = nn.Linear(2, 2)
    made.register_buffer("kept", buffer, persistent)
    return made


class OnMeta(nn.Module):
    """fills: what reset_parameters() fills of the buffer."""

    def __init__(self, fills):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.fills = fills
        self.register_buffer("table", torch.zeros(4), persistent=False)

    def reset_parameters(self):
        nn.init.ones_(self.weight)
        self.table[:self.fills] = 1.0


def on_meta(make):
    with torch.device("meta"):
        return make()


def changed_in_gathered(change):
    def run(acc):
        model = sharded(acc, lambda: nn.Sequential(nn.Linear(3, 3)))
        with acc.gathered(model):
            change(model[0].weight.data)
    return run


def backward_in_gathered(acc):
    model = sharded(acc)
    with acc.gathered(model):
        loss(model).backward()


def step_in_gathered(acc):
    model = sharded(acc)
    optimizer = acc.SGD(model)
    with acc.gathered(model):
        optimizer.step()


def failing_schedule(schedule):
    """A step with the schedule must raise and change nothing."""
    def step(acc):
        model = sharded(acc)
        optimizer = acc.SGD(model)
        optimizer.set_schedule(schedule)
        before = acc.state_dict(model)
        loss(model).backward()
        try:
            optimizer.step()
        finally:
            assert optimizer.steps == 0
            assert all(torch.equal(value, before[name]) for name, value in acc.state_dict(model).items())

    return step


def of_two_dtypes():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to(torch.bfloat16))


def without_reset():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))

    with torch.device("meta"):
        return Scale()


# Mistake -> the exception's class, and a regular expression that its message contains.
MISTAKES = {
    "a parameter outside of its unit": (
        used_outside, "InvalidArgumentError", "parameter '0.weight' is sharded .* its unit '0'"),
    "a gradient outside of its unit": (
        gradient_outside, "InvalidArgumentError", "'0.weight' is used outside of its unit '0'"),
    "a new parameter": (added, "InvalidArgumentError", "'0.more' was put into the module after fully_shard"),
    "a new module": (exchanged, "InvalidArgumentError", "'0.weight' was put into the module after fully_shard"),
    "another parameter": (replaced, "InvalidArgumentError", "'0.weight' was put into the module after fully_shard"),
    "a parameter that the forward changes": (changed_in_forward, "NotSupportedError",
                                             "changed its parameter '0.weight' in place"),
    "a backward after a load": (backward_after_load, "InvalidArgumentError",
                                "only 0 forward scopes .* since the last step or load"),
    "trained after sharding": (
        trained_later, "InvalidArgumentError",
        "parameter '1.bias' cannot require a gradient: it was declared frozen"),
    "frozen for a step of AdamW": (
        frozen_part, "InvalidArgumentError",
        "parameter '2.weight' did not require a gradient .*acc.TorchOptimizer"),
    "another dtype": (lambda acc: sharded(acc).half(), "InvalidArgumentError",
                      "_to_copy.*'0.weight'.*dtype and device cannot be changed"),
    "a copy": (lambda acc: copy.deepcopy(sharded(acc)), "InvalidArgumentError",
               "cannot be copied or pickled"),
    "torch's state dict": (lambda acc: torch.save(sharded(acc).state_dict(), os.devnull),
                           "InvalidArgumentError", "acc.state_dict"),
    "a value of torch's state dict": (lambda acc: sharded(acc).state_dict()["0.weight"].clone(),
                                      "InvalidArgumentError", "acc.gathered"),
    "the address of a value": (lambda acc: sharded(acc).state_dict()["0.weight"].data_ptr(),
                               "InvalidArgumentError", "data_ptr: parameter '0.weight'"),
    "clip_grad_norm_": (clipped, "InvalidArgumentError", "optimizer.clip_norm"),
    "zero_grad of a module around": (zeroed_from_outside, "InvalidArgumentError",
                                     "'0.weight': the runtime holds the gradients"),
    "step after zero_grad of torch": (inner_zero_grad, "InvalidArgumentError", "wrote no gradient"),
    "a step of torch": (inner_step, "InvalidArgumentError", "call step.. of the acc.TorchOptimizer"),
    "param_groups": (lambda acc: acc.SGD(sharded(acc)).param_groups, "AttributeError",
                     "'param_groups': .*set_schedule.*acc.TorchOptimizer"),
    "a rate of torch's schedulers": (
        lambda acc: torch.optim.lr_scheduler.LambdaLR(acc.SGD(sharded(acc)), lambda step: 1.0),
        "AttributeError|TypeError", "param_groups|not an Optimizer"),
    **{f"{what} in gathered": (changed_in_gathered(change), "InvalidArgumentError",
                               "parameter '0.weight' changed in acc.gathered") for what, change in (
        ("changed", torch.Tensor.zero_), ("rows exchanged", lambda data: data.copy_(data.flip(0))),
        ("bytes of the last value exchanged", lambda data: data.view(torch.uint8)[-1, -4:].copy_(
            data.view(torch.uint8)[-1, -4:].flip(0))))},
    "a backward in gathered": (backward_in_gathered, "InvalidArgumentError", "lose the gradients"),
    "a step in gathered": (step_in_gathered, "InvalidArgumentError",
                           r"optimizer.step\(\) in acc.gathered"),
    "a schedule that fails": (failing_schedule(lambda step, base: base / step), "ZeroDivisionError",
                              "division"),
    **{f"a schedule that returns {value!r}": (
        failing_schedule(lambda step, base, value=value: value), "InvalidArgumentError",
        "the schedule's learning rate after 0 steps: expected a finite number of at least 0, got")
       for value in (math.nan, math.inf, -0.1, None, "0.1", [0.1])},
    "a rate that is no number": (lambda acc: setattr(acc.SGD(sharded(acc)), "lr", math.nan),
                                 "InvalidArgumentError", "lr: expected a finite number"),
    "a rate of a group below 0": (
        lambda acc: acc.SGD(sharded(acc), groups=[{"params": ["*"], "lr": -1.0}]),
        "InvalidArgumentError", r"groups\[0\]: lr: expected a finite number of at least 0, got -1.0"),
    "a beta of 1": (lambda acc: acc.AdamW(sharded(acc), betas=(0.9, 1.0)), "InvalidArgumentError", "beta2"),
    "values of the meta device that fail": (
        lambda acc: sharded(acc, lambda: on_meta(lambda: OnMeta("two"))), "TypeError", "slice"),
    "a value of a class": (saving({"fraction": Fraction(1, 3)}), "InvalidArgumentError",
                           "value 'fraction' .* float of 64 bits cannot hold"),
    "a class in a list of a rank": (saving(of_rank={"rates": [1, Decimal(2)]}), "InvalidArgumentError",
                                   "'rates' is list, which a checkpoint cannot hold"),
    "a name with NUL": (saving({"a\0b": 1}), "InvalidArgumentError", "contains a NUL"),
    "a name of another type": (saving({1: 1}), "InvalidArgumentError", "must be a str, got 1"),
    "a surrogate": (saving({"text": "\ud800"}), "InvalidArgumentError", "'text' .* UTF-8"),
    "a reserved name": (saving({"acc.extra_states": 1}), "InvalidArgumentError", "the package uses"),
    "a path with NUL": (lambda acc: acc.export_weights(sharded(acc), "a\0.safetensors"),
                        "InvalidArgumentError", "contains a NUL"),
    "a seed below 0": (lambda acc: sharded(acc, seed=-1), "InvalidArgumentError",
                       r"seed is -1, expected an integer from 0 to 2\^64 - 1"),
    "steps that are no integer": (
        lambda acc: acc.SGD(sharded(acc)).set_schedule("linear", total_steps=1.5),
        "InvalidArgumentError", "total_steps must be a whole number, found 1.5"),
    **{f"values of a schedule: {words}": (
        lambda acc, schedule=schedule, values=values: acc.SGD(sharded(acc)).set_schedule(schedule, **values),
        "InvalidArgumentError", words) for schedule, values, words in (
            ("linear", {}, "total_steps must be given"),
            ("cosine", {"total_steps": 9, "min_lr": 0.1}, "min_lr is unknown"),
            ("warmup", {"cycles": 1}, "'warmup' has no cycles"),
            (lambda step, base: base, {"total_steps": 9}, "has no total_steps"),
            (None, {}, "schedule must be a function or one of constant, .*got None"))},
    "a number that double cannot hold": (
        lambda acc: acc.Runtime().all_gather([2**53 + 1]), "InvalidArgumentError",
        "9007199254740993, which a float"),
    "a limit beyond 32 bits": (
        lambda acc: acc.CheckpointSeries(acc.Runtime(), "/tmp", total_limit=2**32),
        "InvalidArgumentError", "total_limit is 4294967296"),
    "a buffer of another dtype": (saving(change=replaced_buffer, make=Counter), "InvalidArgumentError",
                                  r"buffer 'seen' is \[\] torch.float32, and was \[\] torch.int64"),
    "a new buffer": (
        saving(change=lambda model: model.register_buffer("more", torch.ones(1))),
        "InvalidArgumentError", "buffer 'more' is new since acc.fully_shard"),
    "a buffer that was shared": (saving(change=unshare, make=no_longer_shared),
                                 "InvalidArgumentError", "'0.seen' and '1.seen' were one tensor"),
    "an extra state that cannot be saved": (
        saving(make=lambda: Counter(extra=Counter)), "InvalidArgumentError", "_extra_state' is type"),
    "weights with an extra state": (
        lambda acc: acc.export_weights(sharded(acc, Counter), "/tmp/unused.safetensors"),
        "InvalidArgumentError", "cannot hold _extra_state"),
    "a sparse buffer": (lambda acc: sharded(acc, lambda: with_buffer(torch.eye(2).to_sparse())),
                        "InvalidArgumentError", "buffer 'kept' is torch.sparse_coo"),
    "an unfilled buffer": (lambda acc: sharded(acc, lambda: on_meta(lambda: OnMeta(0))),
                           "InvalidArgumentError", "'table' is on the meta device, and reset_parameters"),
    "a buffer filled in part": (lambda acc: sharded(acc, lambda: on_meta(lambda: OnMeta(3))),
                                "InvalidArgumentError", "'table' .* or a part of it"),
    "a buffer on meta without reset_parameters": (
        lambda acc: sharded(acc, lambda: with_buffer(torch.ones(2, device="meta"), False)),
        "InvalidArgumentError", "'kept' .*Linear has no reset_parameters|'kept' is on the meta device"),
    "torch's optimizer": (torch_optimizer, "InvalidArgumentError", "use acc.AdamW"),
    "a rate of torch's optimizer": (rate_of_torch, "InvalidArgumentError", "set them there"),
    "an exception of torch's optimizer": (failing_rule, "TypeError", "closure"),
    **{f"the optimizer {cls.__name__} for whole parameters": (
        lambda acc, cls=cls: acc.TorchOptimizer(sharded(acc), cls), "NotSupportedError", f"{cls.__name__} needs {what}")
       for cls, what in ((torch.optim.LBFGS, "more than one element"),
                         (type("OwnAdafactor", (torch.optim.Adafactor,), {}), "more than one element"),
                         (type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {}), "whole parameters"))},
    "state of other shards": (other_shards, "ConfigError", "same number of ranks"),
    "zero_grad of a part": (zero_grad_of_a_part, "InvalidArgumentError", "of a part .Linear. of"),
    "step after zero_grad": (step_after_zero_grad, "InvalidArgumentError",
                             "unit 'root' had a forward since the last step, but its backward"),
    "rejoin without --rejoin": (rejoined, "NotSupportedError", "start acclaunch with --rejoin"),
    "rejoin with process groups": (lambda acc: rejoined(acc, True), "NotSupportedError",
                                   "process groups of torch.distributed stay without the rank"),
    "backward after step": (backward_after_step, "InvalidArgumentError",
                            "unit 'root': .* before the last optimizer.step"),
    "create_graph": (second_order, "InvalidArgumentError", "unit 'root': .*create_graph=True"),
    "a gradient penalty": (gradient_penalty, "InvalidArgumentError", "create_graph=True"),
    "a recomputed forward that changes its argument": (
        changing_argument, "InvalidArgumentError",
        "unit 'blocks.0': .*fsdp_activation_checkpointing .* changes an argument"),
    "after a failed backward": (after_a_failed_backward, "InvalidArgumentError",
                                "a backward of this module has failed"),
    "an unused unit": (unused_unit, "InvalidArgumentError", "unit 'blocks.1' .* unused_units=True"),
    "too many micro-steps": (too_many_micro_steps, "InvalidArgumentError",
                             "unit 'root' begins micro-step 2, but gradient_accumulation_steps is 1: "
                             r"call optimizer.step\(\) first, .*zero_grad.* "
                             "--gradient_accumulation_steps 2"),
    "sharded twice": (lambda acc: acc.fully_shard(sharded(acc), acc.Runtime()),
                      "InvalidArgumentError", "sharded already"),
    "not sharded": (lambda acc: acc.SGD(nn.Linear(2, 2)), "InvalidArgumentError",
                    "call acc.fully_shard first"),
    "no such unit": (lambda acc: sharded(acc, units=["Block"]), "InvalidArgumentError",
                     "'Block' .* its classes are Linear, ReLU, Sequential"),
    "two dtypes": (lambda acc: sharded(acc, of_two_dtypes), "InvalidArgumentError",
                   r"float32 \('0.weight'\), torch.bfloat16 \('1.weight'\)"),
    "a dtype": (lambda acc: sharded(acc, lambda: nn.Linear(2, 2).double()), "InvalidArgumentError",
                "'weight' is torch.float64"),
    "no parameters": (lambda acc: sharded(acc, nn.ReLU), "InvalidArgumentError", "no parameters"),
    "meta without reset_parameters": (lambda acc: sharded(acc, without_reset),
                                      "InvalidArgumentError", "Scale has no reset_parameters"),
    # No other device is available everywhere; what the runtime sees is that it is not its own.
    "a tensor of another device": (
        lambda acc: sharded(acc)(torch.ones(2, 4, device="meta")), "InvalidArgumentError",
        "tensor on meta, but the runtime computes on cpu"),
    "a compiled module": (
        lambda acc: torch.compile(sharded(acc, units=[nn.Linear]), backend="eager")(
            torch.ones(2, 4)), "InvalidArgumentError", "compile the forward of the units"),
    "no such checkpoint": (lambda acc: acc.load_weights(sharded(acc), "/no/such"), "ConfigError",
                           "/no/such"),
    "no optimizer chosen": (lambda acc: acc.optimizer_from_settings(sharded(acc)), "ConfigError",
                            "optimizer"),
}


def told(acc, runtime, call):
    """Prints the exception of a call, or of the next one if the call needs nothing of the other rank any more, and ends
    when both ranks have: the launcher ends the other one."""
    try:
        call()
        runtime.barrier()
    except (acc.Error, ArithmeticError, KeyboardInterrupt) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    open(f"{os.environ['SAID']}/{os.environ['RANK']}", "w").close()
    while len(os.listdir(os.environ["SAID"])) < 2:
        time.sleep(0.01)
    sys.exit(1)


def schedule_of_one_rank(acc, model, optimizer, runtime):
    optimizer.set_schedule(lambda step, base: base / (0 if runtime.rank == 1 else 1))
    told(acc, runtime, lambda: (loss(model).backward(), optimizer.step()))


def interrupted_schedule(acc, model, optimizer, runtime):
    """A signal that is handled between the library and the function of the program, as by Control-C."""
    def schedule(step, base):
        if runtime.rank == 1:
            signal.raise_signal(signal.SIGINT)
        return base

    optimizer.set_schedule(schedule)
    told(acc, runtime, lambda: (loss(model).backward(), optimizer.step()))


def values_of_one_rank(acc, model, optimizer, runtime):
    def values():
        if runtime.rank == 1:
            raise ArithmeticError("no such value")

    made = on_meta(lambda: OnMeta(4))
    made.register_buffer("table", None)
    made.weight = nn.Parameter(torch.empty(64, device="meta"))  # both ranks have elements of it
    made.reset_parameters = lambda: (values(), nn.init.ones_(made.weight))
    told(acc, runtime, lambda: acc.fully_shard(made, runtime))


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError("no such gradient")


def backward_of_one_rank(acc, model, optimizer, runtime):
    """Rank 1 catches the exception of its backward, between two units, and does not go on."""
    if runtime.rank == 1:
        model[0].register_forward_hook(lambda module, x, output: FailingBackward.apply(output))
    told(acc, runtime, lambda: (loss(model).backward(), optimizer.step()))


def rule_of_one_rank(acc, model, optimizer, runtime):
    del optimizer
    rule = acc.TorchOptimizer(acc.fully_shard(nn.Linear(4, 4), runtime), torch.optim.SGD, lr=0.1)
    if runtime.rank == 1:
        rule.torch.param_groups[0]["momentum"] = 0.5
    told(acc, runtime, lambda: (loss(rule.model.module).backward(), rule.step()))


# Part -> what two ranks do, and what ranks 0 and 1 print.
CALLBACKS = {
    "schedule": schedule_of_one_rank, "interrupt": interrupted_schedule, "values": values_of_one_rank,
    "rule": rule_of_one_rank, "backward": backward_of_one_rank}
SAID = {
    "backward": ("PeerLostError: rank 1 left the backward of unit 'root' because of an error",
                 "ArithmeticError: no such gradient"),
    "schedule": ("CollectiveError: rank 1 failed in the learning rates of a step: ZeroDivisionError",
                 "ZeroDivisionError: float division"),
    "interrupt": ("CollectiveError: rank 1 failed in the learning rates of a step: KeyboardInterrupt",
                  "KeyboardInterrupt"),
    "values": ("CollectiveError: rank 1 failed in the values of parameter weight: ArithmeticError",
               "ArithmeticError: no such value"),
    "rule": ("DisagreementError: the optimizers of the ranks differ: momentum of parameter group 0 is 0 here, "
             "0.5 on rank 1",
             "DisagreementError: the optimizers of the ranks differ: momentum of parameter group 0 is 0.5 here, "
             "0 on rank 0")}


# What two ranks do, each in an attempt of one job, whose ranks are forked from one process that has imported torch.
PARTS = ("differ", "dies", *SAID, "order", "hangs", "class")
VARIABLES = {
    # 10 s: far above the time that a busy machine needs for a correct step.
    "hangs": {"ACC_COLLECTIVE_TIMEOUT": "10"},
    "class": {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block"},
    **dict.fromkeys(SAID, {"ACC_SHM_GATHER": "copy"})}  # so that a forward gathers weights


def worker(folder):
    """Two ranks, in the attempt of their part. `differ`: they shard different modules. `class`: the launcher's class of
    units does not exist. `order`: rank 1 uses the units in another order. `dies`: rank 1 fails in its forward. `hangs`:
    rank 1 does not continue in its forward."""
    part = PARTS[int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
    print(f"begins {part}", flush=True)
    os.environ.update(VARIABLES.get(part, {}), SAID=f"{folder}/{part}")
    os.makedirs(os.environ["SAID"], exist_ok=True)
    import acclaunch.torch as acc

    torch.set_num_threads(1)
    runtime = acc.Runtime()
    if part == "differ":
        acc.fully_shard(nn.Linear(4, 4 + runtime.rank), runtime)
    if part == "class":
        acc.fully_shard(nn.Sequential(nn.Linear(4, 4)), runtime)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    acc.fully_shard(model, runtime, units=[nn.Linear], unused_units=True)
    optimizer = acc.SGD(model)
    if part == "order":
        first, second = model if runtime.rank == 0 else reversed(model)
        second(first(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    if part in CALLBACKS:
        CALLBACKS[part](acc, model, optimizer, runtime)
    if part == "hangs":
        if runtime.rank == 1:
            model[1].register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
        loss(model).backward()  # the line that waits
    forward = model[1].forward
    model[1].forward = lambda x: forward(x if runtime.rank == 0 else x[:, :2])  # the user's line
    try:
        loss(model).backward()
        optimizer.step()
    except acc.Error as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        open(f"{os.environ['SAID']}/0", "w").close()
        time.sleep(600)  # until the launcher ends it: rank 1 has failed
    except RuntimeError:  # of rank 1
        while not os.listdir(os.environ["SAID"]):  # the launcher ends rank 0 as soon as this one has ended
            time.sleep(0.01)
        raise


def test_two_ranks(acclaunch, package):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [acclaunch, "--cpu", "--num_processes", "2", "--use_fsdp", "--preload", "torch", "--shutdown_timeout", "1",
             "--max_restarts", str(len(PARTS) - 1), "--restart_backoff", "0", os.path.abspath(__file__), folder],
            env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    assert done.returncode == 1, done.stdout
    rest, found = done.stdout, {}
    for part in reversed(PARTS):
        at = rest.find(f"begins {part}\n")
        assert at >= 0, (part, done.stdout)
        rest, found[part] = rest[:at], rest[at:]

    def expect(part, pattern):
        assert re.search(pattern, found[part]), (part, pattern, found[part])

    expect("differ", r"DisagreementError: .*weight is \[\d, 4\] here, \[\d, 4\] on rank \d")
    expect("dies", "# the user's line")
    expect("dies", r"\[0\] PeerLostError: .*rank 1 left the forward of unit '1' because of RuntimeError: mat1 and "
           "mat2")
    for part, said in SAID.items():
        for rank, text in enumerate(said):
            expect(part, re.escape(f"[{rank}] {text}"))
    expect("order", "InvalidArgumentError: the ranks used the units in different orders .* as number 1, rank 0 begins "
           "the forward of unit '0', and rank 1 begins the forward of unit '1'")
    expect("hangs", "# the line that waits")
    expect("hangs", "AccTimeoutError: .*rank 1 did not")
    expect("class", "ConfigError: .*to_wrap names Block, .* the model has Linear")


TWO_GLOOS = """
import sys
if sys.argv[1] == "ours":
    from acclaunch._library import library
    library()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
import acclaunch.torch as acc
runtime = acc.Runtime()
value = torch.full((1000,), float(runtime.rank))
dist.all_reduce(value)
assert value.mean() == 1.0 and runtime.mean(runtime.rank) == 0.5
print("both", flush=True)
"""


def test_two_gloos(package):
    """Two ranks on machines of their own, so that both torch and the runtime use Gloo."""
    for first in ("torch", "ours"):
        job = {"PYTHONPATH": package, "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0",
               "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved_port()),
               "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [subprocess.Popen([sys.executable, "-c", TWO_GLOOS, first], text=True,
                                  stdout=subprocess.PIPE,
                                  env=os.environ | job | {"RANK": rank, "GROUP_RANK": rank})
                 for rank in ("0", "1")]
        try:
            found = [rank.communicate(timeout=900)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert found == ["both\n", "both\n"], (first, found)


def test_imports(package):
    def run(before):
        return subprocess.run([sys.executable, "-c", f"{before}\nimport acclaunch.torch"],
                              env=os.environ | {"PYTHONPATH": package}, capture_output=True,
                              text=True, timeout=900).stderr

    found = run("import torch\ntorch.__version__ = '2.5.1'")
    assert "ImportError: acclaunch.torch needs torch 2.6 or newer, found 2.5.1" in found, found
    library = os.path.join(os.path.dirname(os.path.abspath(package)), "lib", "libacc_runtime.so")
    with tempfile.TemporaryDirectory() as folder:
        other = shutil.copy(library, folder)
        before = f"import ctypes; ctypes.CDLL({other!r})"
        found = run(f"{before}\nimport acclaunch.torch as acc; acc.Runtime()")
    assert f"two versions of libacc_runtime in one process: {other}" in found, found


def main():
    acclaunch, package = sys.argv[1:]
    sys.path.insert(0, package)
    import acclaunch.torch as acc

    for name, (mistake, kind, message) in MISTAKES.items():
        try:
            mistake(acc)
        except (acc.Error, TypeError, AttributeError, ZeroDivisionError) as error:
            found = f"{type(error).__name__}: {error}"
            assert re.search(f"^(?s:({kind}): .*({message}))", found), (name, found)
        else:
            raise AssertionError(f"{name}: no exception")
    test_two_ranks(acclaunch, package)
    test_imports(package)
    test_two_gloos(package)


if __name__ == "__main__":
    worker(sys.argv[1]) if "RANK" in os.environ else main()
