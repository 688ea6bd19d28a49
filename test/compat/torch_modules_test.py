# SPDX-License-Identifier: Apache-2.0
"""torch_modules_test.py ACCLAUNCH PACKAGE: trains modules of many kinds on two ranks with acclaunch.torch,
and the same modules with plain torch: per rank one copy, whose gradients are averaged. Losses, gradient
norms and weights must be equal, step by step. Exits with 77 without torch."""

import contextlib
import copy
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import weakref

try:
    import numpy
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

STEPS, ROWS = 2, 4
# Strategy, and how the ranks of a machine gather: "copy" behaves as several machines do.
MODES = [("FULL_SHARD", "share"), ("FULL_SHARD", "copy"), ("SHARD_GRAD_OP", "copy"), ("NO_SHARD", "share")]


class Case:
    """make: returns a module whose forward returns a tensor; inputs(generator, rows): its arguments."""

    def __init__(self, make, inputs, units=None, *, unused_units=False, tolerance=2e-6, micro_steps=1,
                 no_sync=False, around=contextlib.nullcontext, train=None, precision="no",
                 prepare=None, optimizer="SGD", runtime_settings=None, meta=False):
        self.__dict__.update(vars(), self=None)


def rows_of(*sizes):
    return lambda generator, rows: (torch.randn(rows, *sizes, generator=generator),)


def words(count, length):
    return lambda generator, rows: (torch.randint(count, (rows, length), generator=generator),)


class Blocks(nn.Module):
    """Residual blocks in a ModuleList, as the default choice of units expects."""

    def __init__(self, block, count=3, size=8):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.blocks = nn.ModuleList(block() for _ in range(count))

    def call(self, block, x):
        return block(x)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + self.call(block, x)
        return x


def mlp(size=8):
    return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(),
                         nn.Linear(2 * size, size))


class Checkpointed(Blocks):
    reentrant = False

    def call(self, block, x):
        return checkpoint(block, x, use_reentrant=self.reentrant)


class Reentrant(Checkpointed):
    reentrant = True


class CheckpointedPairs(Blocks):
    """One checkpoint around two units."""

    def forward(self, x):
        x = self.first(x)
        return checkpoint(lambda y: self.blocks[1](self.blocks[0](y)), x, use_reentrant=False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.blocks = nn.ModuleList(mlp() for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class Twice(Blocks):
    """Each block is used twice in a forward."""

    def forward(self, x):
        return super().forward(super().forward(x))


class ReentrantTwice(Reentrant):
    """Each block is computed twice in one backward, and once more without a checkpoint."""

    def forward(self, x):
        return self.blocks[1](super().forward(super().forward(x)))


class SharedByUnits(nn.Module):
    """Two units share a weight, which belongs to the root."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(mlp() for _ in range(2))
        self.blocks[1][1].weight = self.blocks[0][1].weight

    def forward(self, x):
        return self.blocks[1](self.blocks[0](x))


class Unused(Blocks):
    def forward(self, x):
        self.blocks[1](x)  # has no part in the loss
        return self.blocks[0](self.first(x))


class Frozen(Blocks):
    def __init__(self):
        super().__init__(mlp)
        self.blocks[1].requires_grad_(False)
        self.first.requires_grad_(False)
        self.blocks[2][1].bias.requires_grad_(False)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
            nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, groups=2, bias=False), nn.ReLU())])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class ManyOutputs(nn.Module):
    """Units with keyword arguments and nested outputs, in place changes of an output, a scalar
    parameter, and a unit that returns its parameter."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.factor = nn.Linear(8, 8), nn.Parameter(torch.tensor(0.5))
            self.offset = nn.Parameter(torch.ones(8))

        def forward(self, x, *, bias):
            return {"y": self.linear(x) * self.factor, "more": (bias + self.offset, 3)}, self.offset

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(self.Inner() for _ in range(2))

    def forward(self, x):
        for part in self.parts:
            found, offset = part(x, bias=torch.ones(8))
            found["y"].mul_(2.0)
            x = torch.relu_(x * 1.0) + found["y"] + found["more"][0] * offset
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Nested(nn.Module):
    """Units in units."""

    def __init__(self):
        super().__init__()
        self.outer = nn.ModuleList(Blocks(mlp, count=2) for _ in range(2))

    def forward(self, x):
        for each in self.outer:
            x = each(x)
        return x


def two_forwards(model, inputs):
    return loss_of(model(*inputs)) + loss_of(model(*(2.0 * each for each in inputs)))


def two_losses(model, inputs):
    first, second = (loss_of(model(*(factor * each for each in inputs))) for factor in (1.0, 2.0))
    first.backward()
    return second


def two_backwards(model, inputs):
    output = model(*inputs)
    loss_of(output.abs()).backward(retain_graph=True)
    return loss_of(output)


def dropped_graph(model, inputs):
    loss = loss_of(model(*inputs))
    loss_of(model(*inputs))
    with torch.no_grad():
        model(*inputs)
    return loss


def dropped_gradients(model, inputs):
    loss_of(model(*inputs)).backward()
    model.zero_grad()
    loss = loss_of(model(*inputs))
    model.zero_grad()
    return loss


def gradient_of_input(model, inputs):
    x = inputs[0].clone().requires_grad_()
    return loss_of(model(x.detach() + torch.autograd.grad(loss_of(model(x)), x)[0]))


def frozen_for_a_phase(model, inputs):
    x = inputs[0].clone().requires_grad_()
    model.requires_grad_(False)
    first, second = loss_of(model(x)), loss_of(model(2.0 * x))
    first.backward()
    model.requires_grad_(True)
    second.backward()  # its forward was without gradients of parameters
    third = loss_of(model(3.0 * x))
    model.requires_grad_(False)
    third.backward()  # now its backward is
    model.requires_grad_(True)
    return loss_of(model(x.grad))


def frozen_part(model, inputs):
    """A unit, and a parameter of another one."""
    model.blocks[1].requires_grad_(False)
    model.blocks[2][1].bias.requires_grad_(False)
    return loss_of(model(*inputs))


def with_evaluation(model, inputs):
    model.eval()
    with torch.inference_mode():
        model(*inputs)
    with torch.no_grad():
        model(*inputs)
    model.train()
    return loss_of(model(*inputs))


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def compile_blocks(model):
    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend="aot_eager")


def blocks(**more):
    return Case(lambda: Blocks(mlp), rows_of(8), **more)


FIVE = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "5"}

CASES = {
    "a Linear as the root": Case(lambda: nn.Linear(8, 3), rows_of(8)),
    "Sequential, units by class": Case(mlp, rows_of(8), [nn.Linear]),
    "Sequential, units by name": Case(mlp, rows_of(8), ["1", "3"]),
    "blocks of a ModuleList": blocks(),
    "blocks with AdamW": blocks(optimizer="AdamW", tolerance=2e-5),
    "blocks with Lion": blocks(optimizer="Lion"),
    "blocks with Adam": blocks(optimizer="Adam", tolerance=2e-5),
    "blocks with NAdam": blocks(optimizer="NAdam", tolerance=2e-5),
    "blocks with Adagrad": blocks(optimizer="Adagrad", tolerance=2e-5),
    "blocks with RMSprop": blocks(optimizer="RMSprop", tolerance=2e-5),
    "Adamax of torch": Case(Frozen, rows_of(8), optimizer="Adamax", tolerance=2e-5),
    "convolutions and BatchNorm": Case(Convolutions, rows_of(3, 6, 6), tolerance=2e-5),
    "embedding with a tied head": Case(Tied, words(11, 5)),
    "attention": Case(lambda: Blocks(Attention, 2), rows_of(5, 8)),
    "transformer layers": Case(lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2,
        enable_nested_tensor=False), rows_of(5, 8)),
    "LSTM": Case(Recurrent, rows_of(5, 8), ["lstm"]),
    "frozen parameters": Case(Frozen, rows_of(8)),
    "a block used twice": Case(lambda: Twice(mlp), rows_of(8)),
    "a weight of two units": Case(SharedByUnits, rows_of(8)),
    "an unused unit": Case(lambda: Unused(mlp), rows_of(8), unused_units=True),
    "many outputs": Case(ManyOutputs, rows_of(8)),
    "units in units": Case(Nested, rows_of(8), [Blocks, nn.Sequential]),
    "two forwards before the backward": blocks(train=two_forwards),
    "two losses, each with its backward": blocks(train=two_losses),
    "two backwards of a forward": blocks(train=two_backwards),
    "a forward without a backward": blocks(train=dropped_graph),
    "zero_grad in place of a step": blocks(train=dropped_gradients),
    "torch.autograd.grad of an input": blocks(train=gradient_of_input),
    "frozen for a phase": blocks(train=frozen_for_a_phase),
    "a frozen part": blocks(train=frozen_part, optimizer="Adamax", tolerance=2e-5),
    "evaluation between steps": blocks(train=with_evaluation),
    "gradient accumulation": blocks(micro_steps=2),
    "no_sync": blocks(micro_steps=2, no_sync=True),
    "an incomplete group of micro-steps": blocks(micro_steps=3, runtime_settings=FIVE),
    "the same with two losses": blocks(micro_steps=2, runtime_settings=FIVE, train=two_losses),
    "the same with no_sync": blocks(micro_steps=2, no_sync=True, runtime_settings=FIVE),
    "the same with an optimizer of torch": blocks(micro_steps=3, runtime_settings=FIVE,
                                                  optimizer="Adamax", tolerance=2e-5),
    "checkpoint": Case(lambda: Checkpointed(mlp), rows_of(8)),
    "checkpoint, reentrant": Case(lambda: Reentrant(mlp), rows_of(8)),
    "checkpoint, reentrant and twice": Case(lambda: ReentrantTwice(mlp), rows_of(8)),
    "checkpoint in a unit": Case(lambda: Checkpointed(mlp), rows_of(8), []),
    "checkpoint in a unit, reentrant": Case(lambda: Reentrant(mlp), rows_of(8), []),
    "checkpoint around two units": Case(lambda: CheckpointedPairs(mlp, 2), rows_of(8)),
    "activation checkpointing of the launcher": blocks(
        runtime_settings={"FSDP_ACTIVATION_CHECKPOINTING": "true"}),
    "two backwards with activation checkpointing": blocks(
        train=two_backwards, runtime_settings={"FSDP_ACTIVATION_CHECKPOINTING": "true"}),
    "torch.autograd.grad with activation checkpointing": blocks(
        train=gradient_of_input, runtime_settings={"FSDP_ACTIVATION_CHECKPOINTING": "true"}),
    "autocast": blocks(around=autocast, tolerance=1e-5),
    "the meta device": Case(Convolutions, rows_of(3, 6, 6), tolerance=2e-5, meta=True),
    "attention on the meta device": Case(lambda: Blocks(Attention, 2), rows_of(5, 8), meta=True),
    "compiled blocks": blocks(prepare=compile_blocks),
}


def loss_of(output):
    while not isinstance(output, torch.Tensor):
        output = output[0]
    return output if output.dim() == 0 else (output.float() ** 2).mean()


# Those that the runtime lacks are torch's, over the shards.
OPTIMIZERS = {"SGD": {"lr": 0.05, "momentum": 0.9}, "AdamW": {"lr": 1e-2}, "Adamax": {"lr": 1e-2},
              "Adam": {"lr": 1e-2, "betas": (0.8, 0.5), "weight_decay": 0.1, "amsgrad": True},
              "NAdam": {"lr": 1e-2, "weight_decay": 0.1}, "Adagrad": {"lr": 0.05, "lr_decay": 0.1},
              "Lion": {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1},
              "RMSprop": {"lr": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 0.1}}


class Lion(torch.optim.Optimizer):
    """The formula of arXiv 2302.06675, which torch does not have, in double."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for each in group["params"]:
                grad, m = each.grad.double(), self.state[each].get("exp_avg", 0.0)
                update = torch.sign(beta1 * m + (1 - beta1) * grad) + group["weight_decay"] * each
                self.state[each]["exp_avg"] = beta2 * m + (1 - beta2) * grad
                each -= group["lr"] * update


def optimizer_of(case, parameters):
    made = Lion if case.optimizer == "Lion" else getattr(torch.optim, case.optimizer)
    return made(parameters, **OPTIMIZERS[case.optimizer])


def our_optimizer(acc, case, model):
    options = OPTIMIZERS[case.optimizer]
    if hasattr(acc, case.optimizer):
        return getattr(acc, case.optimizer)(model, **options)
    return acc.TorchOptimizer(model, getattr(torch.optim, case.optimizer), **options)


def resumed(acc, case, runtime, model, optimizer):
    """Another copy of the module and its optimizer, from a checkpoint."""
    folder = os.path.join(tempfile.gettempdir(), f"torch_modules_test.{os.getppid()}")  # the launcher's
    runtime.save(folder, model, optimizer)
    model = case.make()
    acc.fully_shard(model, runtime, units=case.units, unused_units=case.unused_units)
    optimizer = our_optimizer(acc, case, model)
    runtime.load(folder, model, optimizer)
    runtime.barrier()
    if runtime.rank == 0:
        shutil.rmtree(folder)
    return model, optimizer


class Reference:
    """Data parallel training in plain torch: one copy of the module for each rank."""

    def __init__(self, case, world):
        torch.manual_seed(3)
        self.case = case
        first = case.make()
        self.copies = [first] + [copy.deepcopy(first) for _ in range(world - 1)]
        self.optimizers = [optimizer_of(case, each.parameters()) for each in self.copies]

    def step(self, batches):
        """batches: for each rank those of its micro-steps. Returns the mean loss and the norm."""
        losses = []
        for each, micro_batches in zip(self.copies, batches):
            for inputs in micro_batches:
                with self.case.around():
                    loss = (self.case.train or plain)(each, inputs)
                losses.append(loss.item())
                loss.backward()
        for parameters in zip(*(each.parameters() for each in self.copies)):
            gradients = [each.grad for each in parameters if each.grad is not None]
            if gradients:
                mean = sum(gradients) / (len(self.copies) * len(batches[0]))
                for each in parameters:
                    each.grad = mean.clone()
            elif parameters[0].requires_grad:  # the runtime's gradient is zero
                for each in parameters:
                    each.grad = torch.zeros_like(each)
        norm = nn.utils.get_total_norm([each.grad for each in self.copies[0].parameters()
                                        if each.grad is not None])
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return sum(losses) / len(losses), norm.item()


def plain(model, inputs):
    return loss_of(model(*inputs))


def train(acc, name, case, runtime):
    reference = Reference(case, runtime.world_size)
    torch.manual_seed(3 if runtime.rank == 0 else 4)  # rank 0's values are used
    with torch.device("meta") if case.meta else contextlib.nullcontext():
        model = case.make()
    if case.prepare:
        case.prepare(model)
    acc.fully_shard(model, runtime, units=case.units, unused_units=case.unused_units)
    if case.meta:
        values = acc.state_dict(model, rank0_only=False)
        assert all(torch.isfinite(each).all() for each in values.values())
        assert all(each.dim() < 2 or each.std() > 0 for each in values.values())
        for each in reference.copies:
            each.load_state_dict(values)
    optimizer = our_optimizer(acc, case, model)
    generator = torch.Generator().manual_seed(7)
    for step in range(STEPS):
        batches = [[case.inputs(generator, ROWS) for _ in range(case.micro_steps)]
                   for _ in range(runtime.world_size)]
        losses = []
        for number, inputs in enumerate(batches[runtime.rank]):
            last = number + 1 == case.micro_steps
            with model.no_sync() if case.no_sync and not last else contextlib.nullcontext():
                with case.around():
                    loss = (case.train or plain)(model, inputs)
                losses.append(loss.item())
                loss.backward()
        found = runtime.mean(sum(losses) / len(losses)), optimizer.step().grad_norm
        expected = reference.step(batches)
        for kind, a, b in zip(("loss", "norm"), found, expected):
            assert abs(a - b) <= case.tolerance * max(1.0, abs(b)), (name, step, kind, a, b)
        optimizer.zero_grad()
        if step == 0 and isinstance(optimizer, acc.TorchOptimizer):
            model, optimizer = resumed(acc, case, runtime, model, optimizer)
    weights = acc.state_dict(model, rank0_only=False)
    expected = reference.copies[runtime.rank].state_dict()
    assert list(sorted(weights)) == list(sorted(expected)), (sorted(weights), sorted(expected))
    for key, value in expected.items():
        assert weights[key].dtype == value.dtype, (key, weights[key].dtype)
        difference = (weights[key].double() - value.double()).abs().max().item()
        assert key in dict(model.named_buffers()) or difference <= 10 * case.tolerance, \
            (name, key, difference)
    for key, value in reference.copies[runtime.rank].named_buffers():
        difference = (dict(model.named_buffers())[key].double() - value.double()).abs().max().item()
        assert difference <= 10 * case.tolerance, (name, key, difference)


def stored_dtypes():
    """Those that files of every form have."""
    return [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
            torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def bits_of(tensor):
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


class Kept(nn.Module):
    """Buffers of each dtype with every bit in use, without dimensions, without elements, with strides,
    expanded, and shared with another module; a table that is in no file; an extra state."""

    def __init__(self, factor, extra=None):
        super().__init__()
        self.linear, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        for number, dtype in enumerate(stored_dtypes()):
            bits = (torch.arange(24 * dtype.itemsize) * 37 * factor + number) % 256
            bits = bits % 2 if dtype is torch.bool else bits
            values = bits.to(torch.uint8).view(dtype).view(-1)[:24]
            name = str(dtype).replace(".", "_")
            self.register_buffer(name, values[:6].view(2, 3).t())
            self.register_buffer(name + "_scalar", values[7].clone())
            self.register_buffer(name + "_empty", torch.empty(2, 0, dtype=dtype))
        self.register_buffer("large", torch.tensor(2**62 + factor))
        self.linear.register_buffer("same", self.large)
        self.register_buffer("expanded", torch.tensor([factor, 2]).expand(3, 2))
        self.register_buffer("table", torch.full((5,), 1j * factor), persistent=False)
        self.extra = extra

    def forward(self, x):
        return self.norm(self.linear(x))

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def expect_kept(found, expected, what):
    """found, expected: tensors by name."""
    for name, value in expected.items():
        other = found[name]
        assert (other.dtype, other.shape) == (value.dtype, value.shape), (what, name, other, value)
        assert torch.equal(bits_of(other), bits_of(value)), (what, name, other, value)


def expect_state(acc):
    """Buffers and extra states of a module are rank 0's, and as they were in all forms of checkpoints."""
    torch.manual_seed(3)
    folder = os.path.join(tempfile.gettempdir(), f"torch_modules_test.{os.getppid()}.state")
    extra = {"scale": torch.tensor([0.5, 2.0]), "steps": 2**70, "history": [("a", 1.5, None)]}
    expected = Kept(1, extra)
    buffers = dict(expected.named_buffers())
    saved = {name: value for name, value in expected.state_dict().items() if name in buffers} | \
        {"linear.same": expected.large}
    for form in ("SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"):
        os.environ["FSDP_STATE_DICT_TYPE"] = form
        runtime = acc.Runtime()
        model = acc.fully_shard(Kept(1 + runtime.rank, extra), runtime)
        expect_kept(dict(model.named_buffers()), buffers, "after fully_shard")
        assert model.large is model.linear.same and model.torch_int64.stride() == (1, 3)
        state = acc.state_dict(model, rank0_only=False)
        assert set(state) == set(expected.state_dict())
        expect_kept(state, saved, "state_dict")
        optimizer = acc.SGD(model)
        values = {"text": "a\0é", "yes": True, "bytes": b"\0", "seed": 2**64 - 1, "least": -2**63, "none": None,
                  "random": random.Random(7).getstate(), "nested": {"a": [1, (2.5, "b")]}, "empty": ""}
        runtime.save(folder, model, optimizer, {"numpy": numpy.int64(-3), **values}, {**values, "rank": [runtime.rank]})
        other = acc.fully_shard(Kept(3), runtime)
        loaded = runtime.load(folder, other, acc.SGD(other))
        assert loaded.get("numpy") == -3 and loaded.of_rank("rank") == [runtime.rank] and loaded.get("rank") is None
        for name, value in values.items():
            assert all(repr(found) == repr(value) for found in (loaded.get(name), loaded.of_rank(name))), name
        expect_kept(dict(other.named_buffers(remove_duplicate=False)), saved, f"load of {form}")
        assert other.large is other.linear.same and other.torch_int64.stride() == (1, 3)
        assert torch.equal(other.extra.pop("scale"), extra["scale"])
        assert other.extra == {name: extra[name] for name in ("steps", "history")}
        runtime.barrier()
        if form == "SHARDED_STATE_DICT":
            theirs = {"model": {name: torch.zeros_like(value) for name, value in saved.items()}}
            dcp.load(theirs, checkpoint_id=f"{folder}/pytorch_model_fsdp_0", no_dist=True)
            expect_kept(theirs["model"], saved, "torch's DCP")
        if form == "FULL_STATE_DICT":
            theirs = torch.load(f"{folder}/pytorch_model_fsdp.bin")
            expect_kept(theirs, saved, "torch.load")
        runtime.barrier()
        if runtime.rank == 0:
            shutil.rmtree(folder)
    del os.environ["FSDP_STATE_DICT_TYPE"]


def expect_gathered(acc):
    """In acc.gathered the module is whole on each rank, and none of its calls is collective."""
    runtime = acc.Runtime()
    for make in (Tied, lambda: Blocks(mlp), Recurrent):
        torch.manual_seed(5)
        expected = make()
        model = acc.fully_shard(copy.deepcopy(expected), runtime)
        average = {name: value.clone() for name, value in expected.named_parameters()}
        with acc.gathered(model) as whole, torch.no_grad():
            assert whole is model
            for name, value in model.state_dict().items():
                assert torch.equal(value, expected.state_dict()[name]), name
            for name, value in model.named_parameters():
                average[name].lerp_(value, 0.5)
                assert value.requires_grad
            if runtime.rank == 0:
                for inner, theirs in zip(model.children(), expected.children()):
                    if isinstance(inner, nn.Linear):
                        x = torch.ones(2, inner.in_features)
                        assert torch.equal(inner(x), theirs(x))
            kept = [each.clone() for each in model.parameters()]
            for each in model.parameters():
                each.data.zero_()
            for each, value in zip(model.parameters(), kept):
                each.copy_(value)
            with acc.gathered(model):
                pass
            assert len(list(model.parameters())) == len(kept)
        assert {type(each).__name__ for each in model.parameters()} == {"ShardedParameter"}
        optimizer = acc.SGD(model)
        x = torch.ones(2, 5, dtype=torch.int64) if make is Tied else torch.ones(2, 5, 8)
        loss_of(model(x)).backward()
        optimizer.step()


def expect_peft(acc):
    """PEFT saves an adapter, and transformers generate, in acc.gathered; outside it names what to use."""
    try:
        import peft
        import transformers
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"without peft: {error}")
        return
    runtime = acc.Runtime()
    torch.manual_seed(5)
    config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=16,
                                     bos_token_id=0, eos_token_id=0, pad_token_id=0)
    expected = peft.get_peft_model(transformers.GPT2LMHeadModel(config), peft.LoraConfig(
        target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)).eval()
    model = acc.fully_shard(copy.deepcopy(expected), runtime)
    words = torch.ones(1, 2, dtype=torch.int64)
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(f"{folder}/outside")
        except acc.InvalidArgumentError as error:
            assert "acc.gathered" in str(error), error
        else:
            raise AssertionError("saved placeholders")
        with acc.gathered(model), torch.no_grad():
            if runtime.rank == 0:
                model.save_pretrained(f"{folder}/adapter")
                found = model.generate(input_ids=words, max_new_tokens=4, do_sample=False)
                assert torch.equal(found, expected.generate(input_ids=words, max_new_tokens=4, do_sample=False))
                expected.save_pretrained(f"{folder}/expected")
                saved, theirs = (load_file(f"{folder}/{name}/adapter_model.safetensors")
                                 for name in ("adapter", "expected"))
                assert saved.keys() == theirs.keys() and theirs
                assert all(torch.equal(saved[name], theirs[name]) for name in theirs)


def train_gan(acc, way, runtime=None):
    """Yields the losses of both parts. runtime: None: plain torch, on the rows of all ranks."""
    torch.manual_seed(3)
    G = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if runtime:
        acc.fully_shard(G, runtime, units=[nn.Linear])
        acc.fully_shard(D, runtime)
        of_g, of_d = acc.SGD(G, lr=0.1, momentum=0.9), acc.AdamW(D, lr=0.1)
    else:
        of_g = torch.optim.SGD(G.parameters(), lr=0.1, momentum=0.9)
        of_d = torch.optim.AdamW(D.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        noise, real = (torch.randn(2, 6, size, generator=generator) for size in (3, 4))
        noise, real = (each[runtime.rank] if runtime else each.flatten(0, 1)
                       for each in (noise, real))
        D.zero_grad()
        fake = G(noise)  # for both phases
        if way == "two losses":
            of_real, of_fake = -D(real).mean(), D(fake.detach()).mean()
            of_real.backward()
            of_fake.backward()
            loss_d = of_real.detach() + of_fake.detach()
        else:
            loss_d = D(fake.detach()).mean() - D(real).mean()
            loss_d.backward()
        of_d.step()
        of_d.zero_grad(set_to_none=True)
        of_g.zero_grad()
        if way == "requires_grad":
            D.requires_grad_(False)
        if way == "cut":
            cut = fake.detach().requires_grad_()
            loss_g = -D(cut).mean()
            fake.backward(torch.autograd.grad(loss_g, cut)[0])
        else:
            loss_g = -D(fake).mean()
            loss_g.backward()
        of_g.step()
        D.requires_grad_(True)
        yield loss_d.item(), loss_g.item()


def expect_gan(acc, runtime):
    for way in ("requires_grad", "zero_grad", "cut", "two losses"):
        for found, expected in zip(train_gan(acc, way, runtime), train_gan(acc, way)):
            for a, b in zip(found, expected):
                assert abs(runtime.mean(a) - b) <= 1e-5, (way, found, expected)


def worker():
    import acclaunch.torch as acc

    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for strategy, gather in MODES:
        os.environ["FSDP_SHARDING_STRATEGY"] = strategy
        os.environ["ACC_SHM_GATHER"] = gather
        runtimes = {}
        for name, case in CASES.items():
            if wanted and name not in wanted:
                continue
            settings = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(case.micro_steps),
                        "ACCELERATE_MIXED_PRECISION": case.precision,
                        "FSDP_ACTIVATION_CHECKPOINTING": "false", **(case.runtime_settings or {})}
            key = tuple(settings.values())
            if key not in runtimes:
                os.environ.update(settings)
                runtimes[key] = acc.Runtime()
            try:
                train(acc, name, case, runtimes[key])
            except BaseException:
                print(f"failed: {name}, {strategy} {gather}", flush=True)
                raise
        if not wanted:
            expect_state(acc)
            expect_gathered(acc)
            if (strategy, gather) == MODES[0]:
                expect_peft(acc)
        if not wanted or "GAN" in wanted:
            os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = "1"
            expect_gan(acc, acc.Runtime())
        gc.collect()  # frees the modules of this mode
    print("trained", flush=True)


class Wrapped(nn.Module):
    """torch's wrapper in `expect_policies`; remembers what it wraps."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def expect_policies(acc):
    """Units by size are those of torch's size_based_auto_wrap_policy."""
    from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

    before = dict(os.environ)
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}
    modules = {"blocks": lambda: Blocks(mlp), "attention": lambda: Blocks(Attention, 2),
               "tied": Tied, "nested": Nested, "convolutions": Convolutions,
               "shared": SharedByUnits}
    for name, make in modules.items():
        for limit in (1, 40, 100, 200, 300, 700, 10000):
            os.environ["FSDP_MIN_NUM_PARAMS"] = str(limit)
            model = acc.fully_shard(make(), acc.Runtime())
            found = {unit.name for unit in model.acc_model.units} - {""}
            theirs = make()
            _recursive_wrap(theirs, lambda **given: size_based_auto_wrap_policy(
                **given, min_num_params=limit), Wrapped, set(), set(), only_wrap_children=True)
            expected = {key.replace("module.", "").removesuffix(".module")
                        for key, each in theirs.named_modules() if isinstance(each, Wrapped)}
            assert found == expected, (name, limit, found, expected)
    os.environ.clear()
    os.environ.update(before)


def expect_freed(acc):
    """fully_shard frees the original parameters at once, not in the next collection of cycles."""
    gc.disable()
    module = Blocks(mlp)
    originals = [weakref.ref(each) for each in module.parameters()]
    acc.fully_shard(module, acc.Runtime())
    assert not any(each() is not None for each in originals)
    gc.enable()


def main():
    acclaunch, package, *wanted = sys.argv[1:]
    sys.path.insert(0, package)
    import acclaunch.torch as acc

    expect_policies(acc)
    expect_freed(acc)
    run = subprocess.run([acclaunch, "--cpu", "--num_processes", "2", "--use_fsdp", "--preload",
                          "torch._dynamo", os.path.abspath(__file__), *wanted],
                         env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable,
                                           "OMP_NUM_THREADS": "1"},
                         capture_output=True, text=True, timeout=550)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("trained") == 2, run.stdout


if __name__ == "__main__":
    worker() if "RANK" in os.environ else main()
