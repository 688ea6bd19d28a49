# SPDX-License-Identifier: Apache-2.0
"""engine_test.py ACCLAUNCH PACKAGE: trains modules with torch's fully_shard and with the one of the engine acc, in
the same processes, by the same functions. Losses, norms and weights must be equal, step by step. Exits with 77
without torch."""

import contextlib
import copy
import dataclasses
import functools
import io
import os
import pathlib
import sys
import threading
import time
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from run_ranks import train_on  # noqa: E402

train_on(2, 4)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from expect_error import expect  # noqa: E402
from leave import leave  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WORDS, SIZE = 13, 6


class Block(nn.Module):
    """Uneven rows, a parameter with fewer rows than ranks, one without elements, one that some inputs do not use."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 2 * SIZE + 1), nn.Linear(2 * SIZE + 1, SIZE)
        self.scale = nn.Parameter(torch.ones(1))
        self.empty = nn.Parameter(torch.empty(0, 3), requires_grad=False)  # FSDP 2 cannot train one on a CPU
        self.rare = nn.Parameter(torch.ones(3, SIZE))

    def forward(self, x, rare=False):
        y = self.scale * self.down(F.gelu(self.up(self.norm(x)))) + self.empty.sum()
        return x + y + (0 if rare is False else self.rare.sum(0) * rare)


class Net(nn.Module):
    def __init__(self, tied=True, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.register_buffer("seen", torch.zeros(()))
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids, rare=False):
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, rare, use_reentrant=False) if self.recompute else block(x, rare)
        self.seen += 1
        return self.head(self.norm(x.to(self.norm.weight.dtype)).to(self.head.weight.dtype))


@dataclasses.dataclass
class Box:
    values: torch.Tensor
    name: str = "x"


class Boxes(nn.Module):
    """Its blocks are given tensors in dataclasses and in keywords, return dataclasses, and append to a list."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(Boxes.Block(SIZE, SIZE) for _ in range(3))
        self.head = nn.Linear(SIZE, WORDS)

    class Block(nn.Linear):
        def forward(self, box, *, scale, seen):
            seen.append(box)
            scale = scale * box.values.dtype.itemsize  # of the dtype to which the precision policy casts
            return Box((super().forward(box.values.to(self.weight.dtype)) * scale).tanh(), box.name)

    def forward(self, ids):
        box, self.seen = Box(self.embedding(ids)), []
        for block in self.blocks:
            box = block(box, scale=torch.tensor(2.0), seen=self.seen)
        return self.head(box.values.to(self.head.weight.dtype)) * box.values.dtype.itemsize


def loss_of(net, ids, **keywords):
    return F.cross_entropy(net(ids, **keywords).flatten(0, 1).float(), ids.flatten())


class Trial:
    """One training with one engine. shard: its fully_shard; arguments: further ones of it."""

    def __init__(self, shard, mesh, arguments):
        self.shard, self.arguments = shard, {"mesh": mesh, **arguments}
        self.generator = torch.Generator().manual_seed(3 + dist.get_rank())
        self.found = []

    def sharded(self, net, groups=False):
        for block in net.blocks:
            self.shard(block, **self.arguments)
        if groups:
            self.shard([net.norm, net.embedding, net.head], **self.arguments)
        self.shard(net, **self.arguments)
        return net

    def ids(self):
        return torch.randint(WORDS, (2, 5), generator=self.generator)

    def note(self, *values):
        for value in values:
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            self.found.append(value.item() if isinstance(value, torch.Tensor) else float(value))

    def note_weights(self, net):
        for name, value in net.state_dict().items():
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            self.note(full.double().sum(), full.double().square().sum())

    def step(self, net, optimizer, **keywords):
        loss = loss_of(net, self.ids(), **keywords)
        loss.backward()
        self.note(loss, nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()


def adamw(net):
    return torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=1e-2, weight_decay=0.3)


# ---- cases: functions of a Trial ------------------------------------------------------------------

def plain(trial, make_optimizer=adamw, make=Net, **keywords):
    net = trial.sharded(make(**keywords))
    optimizer = make_optimizer(net)
    for _ in range(3):
        trial.step(net, optimizer)
    trial.note_weights(net)
    for state in optimizer.state.values():
        for value in state.values():
            trial.note(hasattr(value, "full_tensor"), *(
                each.sum() for each in [value.full_tensor() if hasattr(value, "full_tensor") else value]
                if isinstance(each, torch.Tensor)))


def groups(trial):
    net = trial.sharded(Net(), groups=True)
    optimizer = adamw(net)
    for _ in range(3):
        trial.step(net, optimizer)
    trial.note_weights(net)


def tied_units(trial):
    """A parameter of two units, which torch refuses: tied before, between and after the calls that shard them."""
    before, between, after = Net(), Net(tied=False), Net(tied=False)
    for net in (before, between):
        trial.shard(net.embedding, **trial.arguments)
        if net is between:
            net.head.weight = net.embedding.weight
        trial.shard(net.head, **trial.arguments)
        trial.sharded(net)
    trial.sharded(after, groups=True)
    after.head.weight = after.embedding.weight
    for each in (between, after):
        each.load_state_dict(before.state_dict())
    for each in (before, between, after):
        optimizer, trial.found = adamw(each), []
        trial.generator.manual_seed(3 + dist.get_rank())
        for _ in range(3):
            trial.step(each, optimizer)
        trial.note_weights(each)
        yield trial.found


def edited(trial, by_hooks):
    """What torch's engine takes no notice of: hooks on gradients, made before and after fully_shard, and new `data`.
    With not by_hooks the same by other means."""
    net = Net(tied=False)
    trained = [name for name, each in net.named_parameters() if each.requires_grad]
    seen = []
    before = [net.get_parameter(name).register_hook(lambda gradient: gradient * 2) for name in trained if by_hooks]
    for name in trained if by_hooks else ():
        net.get_parameter(name).register_post_accumulate_grad_hook(seen.append)
    net = trial.sharded(net)
    parameters = [net.get_parameter(name) for name in trained]
    for each in parameters if by_hooks else ():
        each.register_hook(lambda gradient: gradient * 3)
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step():
        loss = loss_of(net, trial.ids(), rare=True)
        loss.backward()
        for each in () if by_hooks else parameters:
            each.grad.mul_(6 if len(trial.found) < 2 else 3)
        optimizer.step()
        optimizer.zero_grad()
        trial.note(loss)

    step()
    kept = [each.data if by_hooks else each.detach().clone() for each in parameters]

    def put(values):
        for each, value in zip(parameters, values):
            if by_hooks:
                each.data = value
            else:
                each.data.copy_(value)

    put([each.detach() * 0.5 for each in parameters])
    with torch.no_grad():
        trial.note(loss_of(net, trial.ids()))
    put(kept)
    for each in before:
        each.remove()
    step()
    assert not by_hooks or len(seen) == 2 * len(trained)
    trial.note_weights(net)


def inference_first(trial):
    """torch's tensors of a first forward in inference mode cannot be trained."""
    def inferred(net):
        with torch.inference_mode():
            net(torch.zeros(1, 2, dtype=torch.int64))
        net.seen = torch.zeros(())
        return adamw(net)

    plain(trial, inferred)


def untied_and_recomputed(trial):
    plain(trial, tied=False, recompute=True)


def accumulation(trial):
    """With and without reductions in between, and with clipping in between."""
    net = trial.sharded(Net())
    optimizer = adamw(net)
    for sync in (True, False, True):
        for micro_step in range(3):
            net.set_requires_gradient_sync(sync or micro_step == 2)
            loss = loss_of(net, trial.ids()) / 3
            loss.backward()
            trial.note(loss)
            if sync:
                trial.note(nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        trial.note(nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=sync)
    trial.note_weights(net)


class First(torch.autograd.Function):
    """The first of two values. The other one gets no gradient."""

    @staticmethod
    def forward(_, one, other):
        return one.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient, None


def penalised(trial):
    """Penalties on weights, which torch adds to a loss only with full_tensor; it fails with the gradient of a sum,
    which is no Shard."""
    net = trial.sharded(Net())
    trained = [each for each in net.parameters() if each.requires_grad and each.numel() > 1]  # as torch can
    optimizer, is_ours = adamw(net), trial.shard.__module__.startswith("acclaunch")
    before = [each.detach().full_tensor() for each in trained]
    for number in range(4):
        added = 0.02 * sum((each.pow(2).sum(), (each if is_ours else each * torch.ones_like(each)).sum(), each.norm(),
                            0)[number] for each in trained)
        loss = loss_of(net, trial.ids(), rare=True)
        if number == 3:
            for each, old in zip(trained, before):
                kept = (each - (old if is_ours else distributed(old, each))).square().sum()
                added = added + (kept if is_ours else kept.full_tensor())
        loss = loss + (added.full_tensor() if isinstance(added, DTensor) and not is_ours else added)
        if number == 1:  # torch fails in the backward of a norm of a product of rows
            head = trained[0] if is_ours else trained[0].full_tensor()
            product = head.mT @ head
            loss = loss + 0.02 * torch.norm(product - torch.eye(SIZE, out=torch.empty_like(product)))
        if is_ours:  # torch has no gradient that is a Shard for it
            loss = First.apply(loss, trained[0].full_tensor())
        loss.backward()
        trial.note(loss, nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        if is_ours:  # torch 2.13 adds the norms of a rank's rows first
            norms = torch.stack([each.norm() for each in trained]).sum()
            trained[0].add_(before[0]).mul_(torch.full(before[0].shape[1:], 2.0))
            before[1].add_(trained[1])
        else:
            norms = sum(each.full_tensor().norm() for each in trained)
            trained[0].add_(distributed(before[0], trained[0])).mul_(2)
            before[1].add_(trained[1].full_tensor())
        trial.note(norms, before[1].sum())
    trial.note_weights(net)


def distributed(whole, like):
    return torch.distributed.tensor.distribute_tensor(whole, like.device_mesh, like.placements)


def sometimes_used(trial):
    """A parameter that no backward reaches has no gradient, and AdamW leaves it as it is."""
    net = trial.sharded(Net())
    optimizer = adamw(net)
    for rare in (False, True, False):
        trial.step(net, optimizer, rare=rare)
        trial.note(net.blocks[0].rare.grad is None)
    trial.note_weights(net)


def used_by_some(trial, otherwise):
    """A parameter that some ranks use and others do not, also in a backward without a reduction. With otherwise 0.0 in
    place of False these use it too, with a gradient of zero."""
    net = trial.sharded(Net())
    optimizer = adamw(net)
    for number in range(4):
        rare = number % 2 == dist.get_rank() or otherwise
        net.set_requires_gradient_sync(False)
        loss_of(net, trial.ids(), rare=rare).backward()
        net.set_requires_gradient_sync(True)
        trial.step(net, optimizer, rare=rare if number < 2 else otherwise)
    trial.note_weights(net)


def called_with_others(trial, others):
    """Forwards with other values in place of the parameters. With not others the same by changes in place."""
    net = trial.sharded(Net(tied=False))
    optimizer = adamw(net)
    for _ in range(2):
        halves = {name: each.detach() * 0.5 for name, each in net.named_parameters()}
        with torch.no_grad():
            if others:
                trial.note(torch.func.functional_call(net, halves, (trial.ids(),)).square().sum())
            else:
                for each in net.parameters():
                    each.mul_(0.5)
                trial.note(net(trial.ids()).square().sum())
                for each in net.parameters():
                    each.mul_(2)
        trial.step(net, optimizer)
    trial.note_weights(net)


class Perturbed(Net):
    """Moves its inputs against the gradient of its loss, which it computes in its forward if it is not given."""

    def forward(self, ids, shift=None):
        inputs = self.embedding(ids)
        if shift is None:
            shift = torch.full_like(inputs, 0.01).requires_grad_()
            shift = self.direction(self.rest(inputs.detach() + shift), ids, shift)
        return self.rest(inputs + shift)

    def rest(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(self.norm(inputs))

    @staticmethod
    def direction(output, ids, shift):
        loss = F.cross_entropy(output.flatten(0, 1).float(), ids.flatten())
        return 0.1 * torch.autograd.grad(loss, shift)[0].sign()


def perturbed(trial, inside):
    """torch.autograd.grad in a forward, and forwards with their backwards in one autocast, whose casts of weights are
    of the first one. With not inside around each."""
    net = trial.sharded(Perturbed(tied=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            for _ in range(2):
                ids, shift = trial.ids(), None
                with torch.autocast("cpu", torch.bfloat16):
                    if not inside:
                        shift = torch.full((2, 5, SIZE), 0.01, requires_grad=True)
                        shift = net.direction(net(ids, shift), ids, shift)
                    loss = loss_of(net, ids, shift=shift)
                loss.backward()
                trial.note(loss)
        optimizer.step()
        optimizer.zero_grad()
    trial.note_weights(net)


def changed_between(trial, late):
    """Weights that change after a forward whose backward never runs: with late while the last rank is in it."""
    net, outputs = trial.sharded(Net(tied=False)), []
    if late and dist.get_rank() == dist.get_world_size() - 1:
        net.blocks[1].register_forward_pre_hook(lambda *_: time.sleep(0.1))
    for change in (lambda each: each.mul_(0.5), lambda each: each.data.add_(0.1),
                   lambda each: setattr(each, "data", each * 2), lambda _: None):
        outputs.append(net(trial.ids()).sum())
        with torch.no_grad():
            for each in net.parameters():
                change(each)
    trial.note(*outputs)


def changed_before_backward(trial, late):
    """`data` of weights that change between a forward and its backward, which computes with those of all ranks: with
    late while the last rank has not changed all."""
    net = trial.sharded(Net(tied=False))
    for _ in range(2):
        loss = loss_of(net, trial.ids())
        for number, each in enumerate(net.parameters()):
            if late and number == 1 and dist.get_rank() == dist.get_world_size() - 1:
                time.sleep(0.1)
            each.data.mul_(0.5)
        loss.backward()
        trial.note(*(each.grad.norm() for each in net.parameters() if each.grad is not None))


def frozen(trial):
    """Only some parameters are trained, as with adapters; one is frozen for a while, and once when its gradient is not
    reduced yet, and a forward has no backward."""
    net = Net(tied=False)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("down" in name or "head" in name)
    trial.sharded(net)
    optimizer = adamw(net)
    for trained in (True, False, True):
        net.head.weight.requires_grad_(trained)
        trial.step(net, optimizer)
    awaited = loss_of(net, trial.ids())
    net.set_requires_gradient_sync(False)
    loss_of(net, trial.ids()).backward()
    net.set_requires_gradient_sync(True)
    net.head.weight.requires_grad_(False)
    loss_of(net, trial.ids()).backward()
    trial.note(awaited, nn.utils.clip_grad_norm_(net.parameters(), 1.0))
    optimizer.step()
    trial.note_weights(net)


class Judge(nn.Module):
    """Ends with a unit whose output gets no gradient, in which a checkpoint that repeats it stops."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WORDS, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        x = self.first(x).tanh()
        return x * self.last(x).detach()


def judged(trial):
    """A loss from a module without trained parameters."""
    net, judge = trial.sharded(Net()), Judge().requires_grad_(False)
    trial.shard(judge.last, **trial.arguments)
    trial.shard(judge, **trial.arguments)
    optimizer = adamw(net)
    for recompute in (False, True, False):
        output = net(trial.ids())
        loss = (checkpoint(judge, output, use_reentrant=False) if recompute else judge(output)).square().mean()
        loss.backward()
        trial.note(loss, nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
    trial.note_weights(net)


def two_losses(trial):
    net = trial.sharded(Net())
    optimizer = adamw(net)
    for _ in range(2):
        one, other = loss_of(net, trial.ids()), loss_of(net, trial.ids())
        one.backward()
        other.backward()
        again = loss_of(net, trial.ids())
        again.backward(retain_graph=True)
        trial.note(one, other, again, nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
    trial.note_weights(net)


def evaluation(trial):
    """Evaluation between forward and backward and between steps; weights that the program changes itself, also by what
    it has had since before the first forward."""
    net = trial.sharded(Net())
    parameters = list(net.parameters())
    state, *early = net.state_dict(), [each.detach() for each in parameters], [each.data for each in parameters]
    torch.save(parameters, io.BytesIO())
    optimizer = adamw(net)
    for number in range(3):
        loss = loss_of(net, trial.ids())
        with torch.no_grad():
            trial.note(loss_of(net, trial.ids()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for each in parameters:
                (each.mul_(0.9), each.data.mul_(0.9), each._local_tensor.mul_(0.9))[number]
            for each in early[number % 2]:
                each.mul_(0.9)
            trial.note(loss, loss_of(net, trial.ids()), *(each.double().sum() for each in state.values()))
    trial.note_weights(net)


def made_empty(trial):
    with torch.device("meta"):
        net = Net(tied=False)
    kept = trial.sharded(net).state_dict()
    net.to_empty(device="cpu")
    trial.note(all(each.is_meta for each in kept.values()))
    with torch.no_grad():
        for number, each in enumerate(net.parameters()):
            each.fill_(0.01 * number)
        net.seen.zero_()
    optimizer = adamw(net)
    for _ in range(2):
        trial.step(net, optimizer)
    trial.note_weights(net)


def loaded(trial):
    """load_state_dict of a copy, assigned and copied, after steps."""
    net = trial.sharded(Net(tied=False)).to("cpu")
    optimizer = adamw(net)
    trial.step(net, optimizer)
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    trial.step(net.float(), optimizer)
    net.load_state_dict(kept)
    trial.step(net, optimizer)
    net.load_state_dict(kept, assign=True)
    optimizer = adamw(net)
    trial.step(net, optimizer)
    trial.note_weights(net)


def hooks(trial):
    """An optimizer per parameter, in a hook behind its gradient."""
    net = trial.sharded(Net(tied=False))
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in trained}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in trained:
        each.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        loss = loss_of(net, trial.ids())
        loss.backward()
        trial.note(loss)
    trial.note_weights(net)


def two_models(trial):
    nets = trial.sharded(Net()), trial.sharded(Net(tied=False))
    optimizers = [adamw(net) for net in nets]
    for _ in range(2):
        ids = trial.ids()
        loss = loss_of(nets[0], ids) + (nets[0](ids) - nets[1](ids)).square().mean()
        loss.backward()
        for net, optimizer in zip(nets, optimizers):
            trial.note(loss, nn.utils.clip_grad_norm_(net.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
    for net in nets:
        trial.note_weights(net)


def optimizers(trial):
    for make in (lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True),
                 lambda net: torch.optim.Adam(net.parameters(), lr=1e-2, foreach=False),
                 lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True, amsgrad=True),
                 lambda net: torch.optim.Adagrad(net.parameters(), lr=1e-2)):
        plain(trial, make)


class Adapted(nn.Module):
    """Frozen weights in dtypes of their own, in one unit with trained ones in float32."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randint(256, (SIZE, SIZE), dtype=torch.uint8), requires_grad=False)
        self.phases = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64), requires_grad=False)
        self.scales = nn.Parameter(torch.rand(SIZE, dtype=torch.float64), requires_grad=False)
        self.base = nn.Linear(SIZE, SIZE, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(SIZE, 2), nn.Linear(2, SIZE)

    def forward(self, x, rare=False):
        frozen = x @ (self.codes.to(x.dtype) / 255 - 0.5) * self.scales.to(x.dtype) + self.phases.real.sum()
        return x + frozen + self.base(x.to(self.base.weight.dtype)).to(x.dtype) + self.up(self.down(x))


def dtypes(trial):
    """Several dtypes in a unit and in a model, and units that are trained in several."""
    net = Net(tied=False)
    net.blocks = nn.ModuleList([Adapted(), Block(), Adapted()])
    net.head.bfloat16()
    trial.shard(net.head, **trial.arguments)
    trial.sharded(net)
    optimizer = adamw(net)
    for _ in range(3):
        loss = loss_of(net, trial.ids())
        loss.backward()
        trial.note(loss)
        optimizer.step()
        optimizer.zero_grad()
    trial.note(*(each.dtype.itemsize for each in net.parameters()))
    trial.note_weights(net)


def policies(trial):
    """The head and the norms compute in float32, the rest in bfloat16."""
    low = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    high = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.float32)
    net = Net(tied=False)
    for each in (net.norm, net.head, *(block.norm for block in net.blocks)):
        trial.shard(each, mp_policy=high, **trial.arguments)
    trial.arguments = {**trial.arguments, "mp_policy": low}
    for block in net.blocks:
        block.norm.register_forward_hook(lambda _, __, output: output.bfloat16())
    trial.sharded(net)
    optimizer = adamw(net)
    for _ in range(3):
        trial.step(net, optimizer)
    trial.note_weights(net)


def unfrozen(trial):
    """Parameters that are trained later than the first forward, and others that are frozen then."""
    net = Net(tied=False)
    for block in net.blocks:
        block.requires_grad_(False)
    trial.sharded(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for trained in (False, True, False, True):
        for block in net.blocks[1:]:
            block.up.requires_grad_(trained)
        net.embedding.requires_grad_(not trained)
        trial.step(net, optimizer)
        trial.note(net.embedding.weight.grad is None, net.blocks[1].up.weight.requires_grad)
    trial.note_weights(net)


def whole(trial):
    """unshard and reshard: weights that are read, and a forward outside of that of the root."""
    net = trial.sharded(Net())
    optimizer = adamw(net)
    net.set_reshard_after_backward(False)
    net.set_reshard_after_backward(True)
    for _ in range(2):
        for unit in (net, *net.blocks):
            unit.unshard(async_op=True).wait()
        with torch.no_grad():
            trial.note(F.linear(net.norm(net.embedding(trial.ids())), net.blocks[0].up.weight).square().sum())
            trial.note(type(net.head.weight) is nn.Parameter, net.head.weight.shape[0])
        net.blocks[0].reshard()
        trial.note(net.blocks[0].up.weight._local_tensor.numel())
        trial.step(net, optimizer)
        net.unshard()
        with torch.no_grad():
            trial.note(loss_of(net, trial.ids()), net.norm.weight.sum())
        net.reshard()
        trial.step(net, optimizer)
    trial.note_weights(net)


def partly_reduced(trial):
    """One unit's gradients are reduced later than the others', and divided by another number."""
    net = trial.sharded(Net(tied=False))
    net.blocks[0].set_force_sum_reduction_for_comms(True)  # for Gloo
    net.blocks[0].set_gradient_divide_factor(3.0)
    net.set_reduce_scatter_unused_params(True)
    optimizer = adamw(net)
    for number in range(4):
        net.blocks[1].set_requires_gradient_sync(number % 2 == 1, recurse=False)
        loss = loss_of(net, trial.ids())
        loss.backward()
        trial.note(loss, net.blocks[1].up.weight.grad is None, net.blocks[2].rare.grad is None)
        optimizer.step()
        optimizer.zero_grad()
    trial.note_weights(net)


class ReadsWeights(Net):
    """Multiplies with the weight of its head in place of calling it, as losses in parts do."""

    def forward(self, ids, rare=False):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, rare)
        x, weight = self.norm(x), self.head.weight
        return F.linear(x, weight.full_tensor() if isinstance(weight, DTensor) else weight)


def compiled(trial):
    """Blocks that are compiled before and after they are sharded, without breaks of their graphs, and the whole module
    afterwards."""
    torch._dynamo.reset()  # of modules of earlier trials: torch has a limit
    net = Net(recompute=True)
    net.blocks[0].compile(backend="aot_eager", fullgraph=True)
    net.blocks[1] = torch.compile(net.blocks[1], backend="aot_eager", fullgraph=True)
    trial.sharded(net)
    net.blocks[2].compile(backend="aot_eager", fullgraph=True)
    optimizer = adamw(net)
    trial.step(net, optimizer)
    whole = torch.compile(net, backend="aot_eager")
    for _ in range(2):
        trial.step(whole, optimizer)
        with torch.no_grad():
            trial.note(loss_of(whole, trial.ids()))
    trial.note_weights(net)


def read_weights(trial):
    """A weight of a list of modules, which is whole until all have run; with our engine also of a unit that is not
    called, where torch does not reduce the gradient of full_tensor."""
    ours = trial.shard.__module__.startswith("acclaunch")
    for is_list in (True, not ours):
        net = ReadsWeights(tied=False)
        trial.shard([net.norm, net.head] if is_list else net.head, **trial.arguments)
        trial.sharded(net)
        optimizer = adamw(net)
        for _ in range(3):
            with torch.no_grad():
                trial.note(net(trial.ids()).sum())
            trial.step(net, optimizer)
        trial.note_weights(net)


def low_precision(trial, **keywords):
    policy = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32,
                                                         output_dtype=torch.float32)
    trial.arguments = {**trial.arguments, "mp_policy": policy}
    plain(trial, **keywords)


def parts(trial):
    """A unit that the program calls by itself, after steps, computes with the values of the last one."""
    policy = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    trial.arguments = {**trial.arguments, "mp_policy": policy}
    net = trial.sharded(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for number in range(2):
        trial.step(net, optimizer)
        for inputs in torch.randn(3, 2, SIZE, generator=trial.generator):
            loss = net.blocks[number](inputs).float().square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                trial.note(loss, net.blocks[number](inputs).float().square().sum())
    trial.note_weights(net)


def boxes(trial):
    plain(trial, make=Boxes)


def boxes_in_low_precision(trial):
    low_precision(trial, make=Boxes)


CASES = {plain: 2e-6, groups: 2e-6, untied_and_recomputed: 2e-6, accumulation: 2e-6, penalised: 2e-6,
         sometimes_used: 2e-6, frozen: 2e-6, judged: 2e-6,
         two_losses: 2e-6, read_weights: 2e-6, evaluation: 2e-6, made_empty: 2e-6, loaded: 2e-6, hooks: 2e-6,
         two_models: 2e-6, optimizers: 2e-6, boxes: 2e-6, compiled: 2e-6, low_precision: 1e-2,
         boxes_in_low_precision: 1e-2,
         dtypes: 1e-2, policies: 1e-2, unfrozen: 2e-6, whole: 2e-6, partly_reduced: 2e-6, parts: 1e-2}


def run(case, shard, mesh, **arguments):
    torch.manual_seed(7)
    trial = Trial(shard, mesh, arguments)
    case(trial)
    return trial.found


def expect_equal(what, ours, theirs, tolerance):
    assert len(ours) == len(theirs), what
    for number, (a, b) in enumerate(zip(ours, theirs)):
        assert abs(a - b) <= tolerance * max(1.0, abs(b)), (what, number, a, b)


def expect_muon(mesh, shard):
    """torch.optim.Muon on shards makes the weights of torch.optim.Muon on whole matrices, bit by bit. All ranks have
    the same batches, so that the mean of the gradients is exact."""
    def trained(sharded, **options):
        torch.manual_seed(3)
        net = Trial(shard, mesh, {}).sharded(Net(tied=False)) if sharded else Net(tied=False)
        parts = [[each for each in net.parameters() if each.requires_grad and (each.dim() == 2) == matrices]
                 for matrices in (True, False)]
        optimizers = torch.optim.Muon(parts[0], lr=0.02, **options), torch.optim.SGD(parts[1], lr=0.05)
        for step in range(3):
            ids = torch.randint(WORDS, (2, 5), generator=torch.Generator().manual_seed(step))
            loss_of(net, ids, rare=True).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [each.full_tensor() if isinstance(each, DTensor) else each for each in parts[0] + parts[1]]

    for options in ({}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}):
        for ours, whole in zip(trained(True, **options), trained(False, **options)):
            assert torch.equal(ours, whole), (options, whole.shape, (ours - whole).abs().max())


def expect_stale(mesh, shard):
    """Refused are a backward that needs values from before a step or another change, as with parameters that are not
    sharded, one of a forward with a reference to a parameter of before the module was sharded, and one in a
    forward."""
    from acclaunch import _fsdp2

    def before_step():
        trial = Trial(shard, mesh, {})
        net = trial.sharded(Net(tied=False))
        optimizer = torch.optim.SGD([net.head.weight], lr=0.1)
        late = loss_of(net, trial.ids())
        loss_of(net, trial.ids()).backward()
        optimizer.step()
        late.backward()

    def before_change(change):
        trial = Trial(shard, mesh, {})
        net = trial.sharded(Net(tied=False))
        late = loss_of(net, trial.ids())
        with torch.no_grad():
            change(net.head.weight)
        late.backward()

    def before_sharding():
        trial, net = Trial(shard, mesh, {}), Net(tied=False)
        net.head.forward = functools.partial(F.linear, weight=net.head.weight)
        loss_of(trial.sharded(net), trial.ids()).backward()

    def in_forward():
        trial, net = Trial(shard, mesh, {}), Net(tied=False)
        net.norm.register_forward_hook(lambda _, __, output: output.sum().backward(retain_graph=True))
        trial.sharded(net)(trial.ids())

    def after_error():
        trial, net = Trial(shard, mesh, {}), Net(tied=False)
        net.norm.register_forward_hook(lambda *_: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            trial.sharded(net)(trial.ids())
        net(trial.ids())

    changed = [functools.partial(before_change, change) for change in (
        lambda weight: weight.mul_(0.9), lambda weight: torch._foreach_add_([weight.detach()], [weight]))]
    for case, text in (*((case, "modified by an inplace operation") for case in (before_step, *changed)),
                       (after_error, "a forward of FSDPNet with gradients has ended with an exception"),
                       (in_forward, "a backward in a forward of FSDPNet gives its parameter 'norm."),
                       (before_sharding, "parameter 'head.weight' of before the module was sharded")):
        _fsdp2._runtimes.clear()  # that of a failed backward cannot be used any more
        expect(RuntimeError, text, case)


class Frames(list):
    def __init__(self, frames, rate):
        super().__init__(frames)
        self.rate = rate


class Pair(tuple):
    def __new__(cls, one, other):
        made = super().__new__(cls, (one, other))
        made.name = "pair"
        return made


def expect_rebuilt():
    """Inputs and outputs of units in lists and tuples of the program's own classes keep these, and their attributes."""
    from acclaunch._units import map_tensors
    one = torch.ones(2)
    pair, frames, found = map_tensors(lambda each: each * 2, (Pair(one, 3), Frames([one], 25), one.max(0)))
    assert (type(pair), pair.name, pair[0].sum(), pair[1]) == (Pair, "pair", 4, 3)
    assert (type(frames), frames.rate, frames[0].sum()) == (Frames, 25, 4)
    assert type(found) is torch.return_types.max and found.values == 2


def expect_little_memory(mesh, shard):
    """Gradients are contributed in memory for one unit, which the next one uses again."""
    from acclaunch import _fsdp2
    from acclaunch._library import MemoryReport
    side = 16
    net = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(4)))
    for each in (*net, net):
        shard(each, mesh=mesh)
    for _ in range(2):
        net(torch.ones(2, side)).sum().backward()
    model, report = _fsdp2.state_of(net).unit.model, MemoryReport()
    model.library.model_memory(model.handle, report)
    assert report.gradient_buffer_bytes == side * side * 4, report.gradient_buffer_bytes


def expect_uneven(mesh, shard):
    """An error on all ranks where one trains, because it has more batches, and the others evaluate."""
    from acclaunch._library import CollectiveError
    trial = Trial(shard, mesh, {})
    net = trial.sharded(Net())
    loss_of(net, trial.ids()).backward()
    try:
        if dist.get_rank() == 0:
            loss_of(net, trial.ids()).backward()
        with torch.no_grad():
            loss_of(net, trial.ids())
    except CollectiveError as error:
        assert "differs" in str(error), error
    else:
        raise AssertionError("a rank trains while others evaluate")


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.kept = weight.t()
        return x @ ctx.kept

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.kept.t(), None


class Keepers(nn.Module):
    """Blocks of several sizes, one of which keeps a view of its weight."""

    def __init__(self, keeper):
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8 + 24 * i), nn.Tanh(), nn.Linear(8 + 24 * i, 8, bias=False)) for i in range(3))
        if keeper is not None:
            last = self.blocks[keeper][-1]
            last.forward = lambda x: Keeping.apply(x, last.weight)

    def forward(self, x, times):
        x = self.first(x)
        for _ in range(times):
            for block in self.blocks:
                x = block(x)
        return x


def expect_kept(mesh, shard):
    """A view of gathered values that a function keeps as an attribute: right where they come back to their place,
    refused where they have moved before the backward."""
    from acclaunch._library import NotSupportedError

    def gradient(keeper, times=1):
        torch.manual_seed(7)
        net = Trial(shard, mesh, {}).sharded(Keepers(keeper))
        net(torch.randn(4, 8), times).square().sum().backward()
        return net.first.weight.grad.full_tensor()

    expected = gradient(None)
    for keeper in range(3):
        assert torch.equal(gradient(keeper), expected), keeper
    try:
        gradient(1, times=2)
    except NotSupportedError as error:
        assert "a view of parameter 'blocks.1.2.weight' that is kept beyond" in str(error), error
    else:
        raise AssertionError("a backward with other values of a weight than its forward")


def expect_whole(mesh, shard):
    """Changes of a sharded parameter, and numbers that are read, are those of the whole one."""
    other = torch.linspace(-1, 1, WORDS * SIZE).sin().view(WORDS, SIZE)
    row, mask = other[3].clone(), other > 0.2
    changes = (
        lambda each: each.add_(other), lambda each: each.mul_(row), lambda each: each.copy_(row),
        lambda each: each.__setitem__(1, 2.0), lambda each: each.__setitem__((3, 2), 0.5),
        lambda each: each.__setitem__(12, row), lambda each: each.__setitem__(mask, 0.1),
        lambda each: each.__setitem__(each > 0.5, 0.0), lambda each: each.mT.__setitem__((1, 5), 0.7),
        lambda each: each.unsqueeze(0).__setitem__((0, 7), row),
        lambda each: each.index_copy_(0, torch.tensor([4, 9]), other[:2]),
        lambda each: torch.add(each, other, out=each), lambda each: torch._foreach_lerp_([each], [other], 0.3),
        lambda each: torch._foreach_copy_([each], [other * 2]), lambda each: torch._foreach_maximum_([each], 0.1),
        lambda each: torch.eye(*each.shape, out=each), lambda each: torch.mul(other, 3.0, out=each),
        lambda each: setattr(each, "data", other.clone()), lambda each: setattr(each, "data", each.data * 2),
        lambda each: nn.utils.vector_to_parameters(torch.arange(float(other.numel())), [each]))
    numbers = (
        lambda each: each.sum().item(), lambda each: float(each.norm()), lambda each: bool((each > 0.99).any()),
        lambda each: torch.stack([each.norm(dim=0).sum(), each.norm(1)]).mean(), lambda each: int(each.argmax()),
        lambda each: F.mse_loss(each, other), lambda each: torch.equal(each, other),
        # Here torch fails with rows.
        lambda each: torch._foreach_copy_([torch.zeros_like(other)], [each])[0].norm(),
        lambda each: torch.eye(SIZE, out=torch.empty_like(each.T @ each)).square().sum(),
        lambda each: each.norm().clamp_(max=0.5).mul_(2), lambda each: each.norm(dim=0).add_(1e-3).sqrt_().sum(),
        lambda each: each.pow(2).mean().clamp_(max=0.01),
        lambda each: each.flatten().norm(), lambda each: each.view(-1).topk(3)[0].sum(),
        lambda each: each.unique().numel(), lambda each: sum(map(sum, each.tolist())),
        lambda each: float(f"{each.sum():.9f}"), lambda each: each[mask].sum(),
        lambda each: torch.cat([part.sum().view(1) for part in each.unbind(0)]).square().sum())
    net = Trial(shard, mesh, {}).sharded(Net(tied=False))
    loss_of(net, torch.zeros(1, 2, dtype=torch.int64)).backward()
    weight = net.head.weight
    whole = weight.detach().full_tensor().clone()
    for number, change in enumerate(changes):
        with torch.no_grad():
            change(weight)
            change(whole)
            expect_equal(("change", number), *(
                [float(read(each).full_tensor() if isinstance(read(each), DTensor) else read(each)) for read in numbers]
                for each in (weight, whole)), 1e-5)
        assert torch.equal(weight.full_tensor(), whole), number
    with torch.no_grad():
        net(torch.zeros(1, 2, dtype=torch.int64))
    assert torch.equal(weight.full_tensor(), whole)
    # Some ranks have no rows, and fail there in torch.
    extremes = (lambda each: each.max(), lambda each: each.amin(0).sum(), lambda each: each.argmax(),
                lambda each: each.aminmax()[0], lambda each: each.min(dim=0)[0].norm(),
                lambda each: each.norm(float("inf")), lambda each: torch.linalg.vector_norm(each, -float("inf")),
                lambda each: torch._foreach_norm([each], float("inf"))[0], torch.ops.aten.max.default,
                torch.ops.aten.amax.default)
    matrix_norms = (torch.linalg.matrix_norm, lambda each: torch.linalg.matrix_norm(each, float("inf")))
    for few in (net.blocks[0].scale, net.blocks[0].rare):
        reads = extremes + (matrix_norms if few.dim() > 1 else ())
        expect_equal(list(few.shape), *([float(read(each)) for read in reads]
                                        for each in (few.detach(), few.detach().full_tensor())), 0)
    one = net.blocks[0].scale
    with torch.no_grad():  # a list of which torch refuses to change one, which has one row
        torch._foreach_add_([weight, one], [weight, torch.full((1,), 2.0)])
    assert torch.equal(weight.full_tensor(), whole * 2) and one.full_tensor().item() == 3


def travels(mesh, ours, theirs, folder):
    """What one engine has saved, the other resumes from."""
    def made(shard, trains_empty=False):
        torch.manual_seed(7)
        trial, net = Trial(shard, mesh, {}), Net()
        for block in net.blocks:
            block.empty.requires_grad_(trains_empty)
        trial.sharded(net)
        return trial, net, adamw(net)

    def state_of(net, optimizer, options):
        return {"model": get_model_state_dict(net, options=options),
                "optimizer": get_optimizer_state_dict(net, optimizer, options=options)}

    def load(net, optimizer, options):
        state = state_of(net, optimizer, options)
        dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
        model, moments = state["model"], state["optimizer"]
        if options.broadcast_from_rank0 and dist.get_rank() != 0:
            model, moments = {}, {}
        set_model_state_dict(net, model, options=options)
        set_optimizer_state_dict(net, optimizer, moments, options=options)

    straight = made(theirs)
    for _ in range(4):
        straight[0].step(*straight[1:], rare=True)
    for one, other, options in ((ours, theirs, {}), (theirs, ours, {"flatten_optimizer_state_dict": True}),
                                (ours, ours, {"cpu_offload": True}),
                                (ours, ours, {"full_state_dict": True, "broadcast_from_rank0": True})):
        options = StateDictOptions(**options)
        trial, *state = made(one, one is other)
        for _ in range(2):
            trial.step(*state, rare=True)
        dcp.save(state_of(*state, options), checkpoint_id=f"{folder}/checkpoint")
        resumed, *state = made(other, one is other)
        resumed.generator = trial.generator
        load(*state, options)
        for _ in range(2):
            resumed.step(*state, rare=True)
        expect_equal("travels", trial.found + resumed.found, straight[0].found, 2e-6)


def saved_beside(mesh, ours, folder):
    """dcp.async_save has the values of its call, although the engine's DTensors are views of memory that the
    training changes while the files are written."""
    from acclaunch import _save_async

    def made():
        torch.manual_seed(7)
        trial = Trial(ours, mesh, {})
        net = trial.sharded(Net())
        optimizer = adamw(net)
        return trial, net, optimizer

    def state_of(net, optimizer):
        return {"model": get_model_state_dict(net), "optimizer": get_optimizer_state_dict(net, optimizer)}

    group = dist.new_group(backend="gloo")  # for the thread of async_save
    trial, *parts = made()
    for _ in range(2):
        trial.step(*parts, rare=True)
    position = trial.generator.get_state()
    # The file is opened when the training has gone on.
    written = threading.Event()
    write = dcp.FileSystemWriter.write_data
    with mock.patch.object(dcp.FileSystemWriter, "write_data", lambda *arguments: written.wait() and write(*arguments)):
        future = dcp.async_save(state_of(*parts), checkpoint_id=f"{folder}/beside", process_group=group)
        for _ in range(2):
            trial.step(*parts, rare=True)
        written.set()
        future.result()
    resumed, net, optimizer = made()
    resumed.generator.set_state(position)
    state = state_of(net, optimizer)
    dcp.load(state, checkpoint_id=f"{folder}/beside")
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    for _ in range(2):
        resumed.step(net, optimizer, rare=True)
    expect_equal("saved beside", resumed.found, trial.found[-len(resumed.found):], 2e-6)
    # Until it is complete, what is written over a checkpoint is none.
    _save_async.serve_files(dcp)  # as --engine acc does
    with mock.patch.object(dcp.FileSystemWriter, "finish", side_effect=OSError("ended")):
        expect(dcp.api.CheckpointException, "ended", lambda: dcp.save(state, checkpoint_id=f"{folder}/beside"))
    expect(dcp.api.CheckpointException, "metadata", lambda: dcp.load(state, checkpoint_id=f"{folder}/beside"))
    dcp.save(state, checkpoint_id=f"{folder}/beside")

    def change_while_read(_, plans):
        os.utime(f"{folder}/beside/.metadata")
        return plans

    with mock.patch.object(dcp.FileSystemReader, "prepare_global_plan", change_while_read):
        expect(dcp.api.CheckpointException, "while the checkpoint was read",
               lambda: dcp.load(state, checkpoint_id=f"{folder}/beside"))


def scale_some(weight):
    weight[2:5] *= 3


def expect_changed_parts(mesh, shard):
    """Changes of views of a parameter, which are copies where its rows lie on several ranks, change it."""
    net = Trial(shard, mesh, {}).sharded(Net(tied=False))
    weight = net.head.weight
    with torch.no_grad():
        kept, expected = weight[3], weight.full_tensor().clone()
        for change in (lambda weight: weight[2].mul_(3), lambda weight: weight[2][1:].mul_(3),
                       lambda weight: weight[2].view(-1).mul_(3), lambda weight: weight[2:].mT.mul_(3),
                       lambda weight: weight.split([1, len(weight) - 1])[0].mul_(3),
                       lambda weight: weight.split_with_sizes([1, len(weight) - 1])[1].mul_(3), scale_some,
                       lambda weight: weight.view(-1)[3:9].add_(1), lambda weight: weight.data[3].zero_(),
                       lambda weight: weight[4].data.fill_(2), lambda weight: weight[5].copy_(weight[6]),
                       lambda weight: weight[:, 1:3][4].add_(1), lambda weight: weight.unbind(0)[7].neg_(),
                       lambda weight: nn.init.ones_(weight[8]), lambda weight: copy.deepcopy(weight[9]).zero_()):
            net(torch.zeros(1, 2, dtype=torch.int64))
            change(weight)
            change(expected)
            assert torch.equal(weight.full_tensor(), expected)
        kept.add_(1)
        expected[3].add_(1)
        assert torch.equal(kept.full_tensor(), expected[3]) and torch.equal(weight.full_tensor(), expected)


def refused(mesh, shard):
    from acclaunch._library import InvalidArgumentError, NotSupportedError

    def net(**keywords):
        return Trial(shard, mesh, keywords).sharded(Net(tied=False))

    ids = torch.zeros(1, 2, dtype=torch.int64)
    expect(NotSupportedError, "shard_placement_fn", lambda: net(shard_placement_fn=lambda _: None))
    expect(NotSupportedError, "FSDPModule.set_all_reduce_hook", lambda: net().set_all_reduce_hook(lambda _: None))
    expect(NotSupportedError, "'weight' in torch.float64", lambda: shard(
        nn.Linear(2, 2, dtype=torch.float64), mesh=mesh)(torch.ones(1, 2)))
    expect(NotSupportedError, "'weight' of a module of torch.jit (Linear)", lambda: shard(
        nn.Sequential(torch.jit.script(nn.Linear(2, 2))), mesh=mesh))
    expect(RuntimeError, "a single root module", lambda: shard(
        [nn.Linear(2, 2), nn.Linear(2, 2)], mesh=mesh)[0](torch.ones(1, 2)))
    expect(AssertionError, "already been applied", lambda: shard(net(), mesh=mesh))
    expect(InvalidArgumentError, "copied or pickled", lambda: copy.deepcopy(net()))

    with torch.no_grad():
        assert int(net().head.weight[2][0]) == 0  # a function whose name begins as that of a change
        expect(NotSupportedError, "_foreach_mul_ of a copy of a part of a DTensor", lambda: torch._foreach_mul_(
            [net().head.weight[2]], 3))
    expect(NotSupportedError, "mul_ of a copy of a part of a DTensor", lambda: net().head.weight[2].mul_(3))

    def changed_in_forward():
        made = Net(tied=False)
        made.embedding.max_norm = 0.1
        Trial(shard, mesh, {}).sharded(made)(ids)

    expect(NotSupportedError, "changed its parameter 'embedding.weight' in place", changed_in_forward)

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(2))

        def forward(self, x):
            return self.experts[dist.get_rank()](x)

    def other_units():
        made = Routed()
        for each in made.experts:
            shard(each, mesh=mesh)
        with torch.no_grad():
            shard(made, mesh=mesh)(torch.ones(1, SIZE))

    expect(InvalidArgumentError, "orders in forwards without gradients: rank 0 that of 'experts.0', rank 1 that of "
           "'experts.1'", other_units)

    def exchanged_in_forward():
        made = net()
        made.head.register_forward_pre_hook(lambda head, _: setattr(head.weight, "data", head.weight.data.clamp(-1, 1)))
        for _ in range(2):
            with torch.no_grad():
                made(ids)

    expect(NotSupportedError, "has exchanged the data of its parameter 'head.weight'", exchanged_in_forward)

    def zero_redundancy():
        from torch.distributed.optim import ZeroRedundancyOptimizer
        made = net()
        optimizer = ZeroRedundancyOptimizer(
            [each for each in made.parameters() if each.requires_grad], torch.optim.SGD, lr=0.1)
        made(ids).sum().backward()
        optimizer.step()

    expect(NotSupportedError, "ZeroRedundancyOptimizer on parameters that are divided", zero_redundancy)
    expect(NotImplementedError, "broadcast_", lambda: dist.broadcast(net().head.weight.data, 0))

    def exchanged_data():
        made = net()
        made(ids)
        made.to("cpu")
        made.head.weight.data = torch.ones(3, SIZE)

    expect(NotSupportedError, "data of shape [3, 6] for a parameter of a sharded module", exchanged_data)

    def for_inputs():
        made = net()
        made(ids).sum().backward(inputs=list(made.head.parameters()))

    expect(NotSupportedError, "torch.autograd.backward with the parameters", for_inputs)

    def changed_by(change, forwards, **keywords):
        def run():
            changed = Trial(shard, mesh, {}).sharded(Net(**keywords))
            for _ in range(forwards):
                changed(ids)
            change(changed)
            changed(ids)
        return run

    def head_with_bias(changed):
        changed.head.bias = nn.Parameter(torch.zeros(WORDS))

    def new_head(changed):
        changed.head = nn.Linear(SIZE, WORDS, bias=False)

    def tie_of_others(changed):
        changed.head.weight = nn.Parameter(changed.head.weight.detach() + 1)

    for forwards in (0, 1):
        expect(InvalidArgumentError, "'head.bias' was put into the module after fully_shard",
               changed_by(head_with_bias, forwards, tied=False))
        expect(InvalidArgumentError, "'head.weight' was put into the module after fully_shard",
               changed_by(new_head, forwards, tied=False))
    expect(InvalidArgumentError, "in one of its places, 'weight' of Linear", changed_by(tie_of_others, 1))

    def gathers_itself():
        changed = net()
        changed.head.weight._local_tensor.fsdp_pre_all_gather = lambda *_: None
        changed(ids)

    expect(NotSupportedError, "'head.weight' is a Tensor with functions of its own for gathering", gathers_itself)

    def computed_from_others():
        made = net()
        made(ids)
        torch.func.functional_call(made, {name: each * 2 for name, each in made.named_parameters()}, (ids,))

    expect(NotSupportedError, "in place of the parameter 'embedding.weight' (torch.func.functional_call)",
           computed_from_others)

    def whole_head(changed):
        changed.head.weight = nn.Parameter(torch.zeros(WORDS, SIZE))

    expect(InvalidArgumentError, "'head.weight' was replaced after the first forward",
           changed_by(whole_head, 1, tied=False))

    def optimized_before(make):
        made = Net(tied=False)
        optimizer = make(made)
        Trial(shard, mesh, {}).sharded(made)
        made(ids).sum().backward()
        if make is lbfgs:  # as Accelerate does; it would go on with the parameters from before
            optimizer.param_groups[0]["params"] = list(made.parameters())
        optimizer.step(lambda: 0.0)

    def lbfgs(net):
        return torch.optim.LBFGS([each for each in net.parameters() if each.numel()])

    for make in (adamw, lbfgs):
        expect(InvalidArgumentError, ".step(): the optimizer was made before fully_shard",
               functools.partial(optimized_before, make))

    def on_meta():
        with torch.device("meta"):
            made = Net(tied=False)
        Trial(shard, mesh, {}).sharded(made)(ids)

    expect(InvalidArgumentError, "is on the meta device", on_meta)


def worker(folder):
    import acclaunch.torch  # noqa: F401
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as theirs

    from acclaunch._fsdp2 import fully_shard as ours

    from acclaunch import _local
    steps = []
    enter = _local.Locals.__enter__
    _local.Locals.__enter__ = lambda self: (steps.append(type(self.optimizer)), enter(self))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    # Two ranks make every case; four those in which rows are uneven or some ranks have none.
    cases = CASES if ranks == 2 else {case: CASES[case] for case in (plain, groups, accumulation)}
    expected = {case: run(case, theirs, mesh) for case in cases}
    for gather in ("share", "copy"):
        os.environ["ACC_SHM_GATHER"] = gather
        from acclaunch import _fsdp2
        _fsdp2._runtimes.clear()
        for case, tolerance in cases.items():
            expect_equal((case.__name__, gather), run(case, ours, mesh), expected[case], tolerance)
    expect_muon(mesh, ours)
    expect_whole(mesh, ours)
    if ranks == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        expect_equal("hybrid", run(accumulation, ours, mesh), run(accumulation, theirs, mesh), 2e-6)
    else:
        expect_equal("kept", run(plain, ours, mesh, reshard_after_forward=False), expected[plain], 2e-6)
        torch.manual_seed(7)
        for found in tied_units(Trial(ours, mesh, {})):
            expect_equal("tied units", found, expected[groups], 2e-6)
        for case, ways in ((used_by_some, (False, 0.0)), (called_with_others, (True, False)),
                           (perturbed, (True, False)), (edited, (True, False)), (changed_between, (True, False)),
                           (changed_before_backward, (True, False))):
            expect_equal(case.__name__, *(run(lambda trial, case=case, way=way: case(trial, way), ours, mesh)
                                          for way in ways), 2e-6)
        expect_equal("inference first", run(inference_first, ours, mesh), expected[plain], 2e-6)
        torch.manual_seed(7)
        net = Trial(ours, mesh, {}).sharded(Boxes())
        net(torch.zeros(1, 2, dtype=torch.int64))
        assert len(net.seen) == 3
        assert all(each._is_fsdp_managed_module for each in net.modules())
        assert type(net).__name__ == "FSDPBoxes" and net._get_name() == "Boxes"
        travels(mesh, ours, theirs, folder)
        saved_beside(mesh, ours, folder)
        refused(mesh, ours)
        expect_changed_parts(mesh, ours)
        expect_rebuilt()
    os.environ["ACC_SHM_GATHER"] = "share" if ranks == 2 else "copy"
    if ranks == 2:
        _fsdp2._runtimes.clear()
        expect_little_memory(mesh, ours)
    expect_stale(mesh, ours)
    if ranks == 2:
        _fsdp2._runtimes.clear()
        expect_uneven(mesh, ours)
        os.environ["ACC_SHM_GATHER"] = "copy"
        _fsdp2._runtimes.clear()
        expect_kept(mesh, ours)
    assert torch.optim.AdamW in steps and (ranks == 4 or torch.optim.SGD in steps), set(steps)
    print("trained", flush=True)
    leave()


if __name__ == "__main__":
    worker(*sys.argv[1:])
