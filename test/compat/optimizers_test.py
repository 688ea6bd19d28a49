# SPDX-License-Identifier: Apache-2.0
"""optimizers_test.py ACCLAUNCH PACKAGE: trains a small module for 20 steps with each optimizer of acclaunch.torch, and
with one of each kind in each strategy (optimizer_step_test trains all of them there): ten steps on three ranks and,
resumed from a checkpoint, ten on two. Compares the weights with those of torch's optimizer in one process. Exits with
77 without torch."""

import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from torch import nn
from torch.nn import functional as F

STEPS, ROWS, RANKS = 20, 6, (3, 2)
# Strategy, and how the ranks of a machine gather: "copy" behaves as several machines do.
MODES = [("FULL_SHARD", "share"), ("FULL_SHARD", "copy"), ("SHARD_GRAD_OP", "share"), ("NO_SHARD", "share")]
IN_EACH_MODE = ("AdamW", "AdamW in 8 bits", "Adafactor", "Muon None", "SOAP", "a rule of the program",
                "a rule of the program for matrices")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8, bias=False)
        # Otherwise its results add up to 0: a direction without gradients, in which SOAP amplifies roundings.
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias, 0.0, 0.3)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.mix(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 13)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


def made():
    torch.manual_seed(3)
    return Net()


def batch(step):
    return torch.randint(13, (ROWS, 5), generator=torch.Generator().manual_seed(step))


def as_matrix(name):
    return name.startswith("blocks.") and not name.endswith(("norm.weight", "bias"))


class TorchMuon:
    """torch.optim.Muon for the matrices of the blocks, in float32 in place of its bfloat16; AdamW for the others."""

    def __init__(self, named, adam_lr, **options):
        named = list(named)
        self.muon = torch.optim.Muon([each for name, each in named if as_matrix(name)], **options)
        self.adamw = torch.optim.AdamW([each for name, each in named if not as_matrix(name)], lr=adam_lr,
                                       weight_decay=options["weight_decay"])

    def step(self):
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):  # a copy, which torch changes in place
            self.muon.step()
        self.adamw.step()

    def zero_grad(self):
        self.muon.zero_grad()
        self.adamw.zero_grad()


class WithAdamW:
    """A rule for the matrices of the blocks, and AdamW of torch for the others."""

    def __init__(self, named, adam_lr, weight_decay, betas):
        named = list(named)
        self.matrices, self.decay, self.steps = [each for name, each in named if as_matrix(name)], weight_decay, 0
        self.states = [{} for _ in self.matrices]
        self.adamw = torch.optim.AdamW([each for name, each in named if not as_matrix(name)], lr=adam_lr,
                                       weight_decay=weight_decay, betas=betas)

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for weight, state in zip(self.matrices, self.states):
            self.update(weight, weight.grad, state)
        self.adamw.step()

    def zero_grad(self):
        for each in self.matrices:
            each.grad = None
        self.adamw.zero_grad()


class FormulaOfSoap(WithAdamW):
    """SOAP (arXiv 2409.11321, algorithm 3): update, update_preconditioner and get_orthogonal_matrix_QR of the authors'
    soap.py, with the moments in the basis, which turns with them, and in double."""

    def __init__(self, named, lr, adam_lr, weight_decay, betas, frequency, largest):
        super().__init__(named, adam_lr, weight_decay, betas)
        self.lr, self.betas, self.frequency, self.largest = lr, betas, frequency, largest

    def turned(self, value, state, back=False):
        left, right = (each if each is None or not back else each.T for each in state["Q"])
        value = value if left is None else left.T @ value
        return value if right is None else value @ right

    def update(self, weight, grad, state):
        one, two = self.betas
        grad = grad.double()
        first = self.steps == 1
        if first:
            state |= {"m": torch.zeros_like(grad), "v": torch.zeros_like(grad), "Q": [None, None],
                      "GG": [torch.zeros(side, side, dtype=torch.double) if side <= self.largest else None
                             for side in grad.shape]}
        else:
            number = self.steps - 1
            turned = self.turned(grad, state)
            state["m"] = one * state["m"] + (1 - one) * turned
            state["v"] = two * state["v"] + (1 - two) * turned ** 2
            size = self.lr * (1 - two ** number) ** 0.5 / (1 - one ** number)
            weight.sub_(size * self.turned(state["m"] / (state["v"].sqrt() + 1e-8), state, back=True))
            weight.mul_(1 - self.lr * self.decay)
        m = self.turned(state["m"], state, back=True)
        for side, gram in enumerate(state["GG"]):
            if gram is None:
                continue
            gram.lerp_(grad @ grad.T if side == 0 else grad.T @ grad, 1 - two)
            if first:
                state["Q"][side] = torch.linalg.eigh(gram)[1].flip(1)
            elif number % self.frequency == 0:
                basis = state["Q"][side]
                order = torch.diag(basis.T @ gram @ basis).argsort(descending=True)
                state["v"] = state["v"].index_select(side, order)
                state["Q"][side] = torch.linalg.qr(gram @ basis[:, order])[0]
        state["m"] = self.turned(m, state)


class FormulaOfShampoo(WithAdamW):
    """Shampoo (arXiv 1802.09568, algorithm 1), in double, with torch's momentum of the result."""

    def __init__(self, named, lr, adam_lr, weight_decay, momentum, frequency):
        super().__init__(named, adam_lr, weight_decay, (0.9, 0.999))
        self.lr, self.momentum, self.frequency = lr, momentum, frequency

    def update(self, weight, grad, state):
        grad = grad.double()
        if self.steps == 1:
            state |= {"sums": [1e-4 * torch.eye(side, dtype=torch.double) for side in grad.shape], "v": 0.0}
        for sum, added in zip(state["sums"], (grad @ grad.T, grad.T @ grad)):
            sum.add_(added)
        if (self.steps - 1) % self.frequency == 0:
            state["roots"] = []
            for sum in state["sums"]:
                values, vectors = torch.linalg.eigh(sum)
                state["roots"].append(vectors @ torch.diag(values ** -0.25) @ vectors.T)
        left, right = state["roots"]
        state["v"] = self.momentum * state["v"] + left @ grad @ right
        weight.mul_(1 - self.lr * self.decay).sub_(self.lr * state["v"])


class FormulaOfLamb:
    """DeepSpeed's FusedLamb (csrc/lamb/fused_lamb_cuda_kernel.cu of 0.19.8), which needs a GPU, in double."""

    def __init__(self, parameters, lr, weight_decay, betas):
        self.parameters, self.lr, self.decay, self.betas, self.steps = list(parameters), lr, weight_decay, betas, 0
        self.m, self.v = ([torch.zeros_like(each, dtype=torch.double) for each in self.parameters] for _ in range(2))

    @torch.no_grad()
    def step(self):
        self.steps += 1
        one, two = self.betas
        size = self.lr * (1 - two ** self.steps) ** 0.5 / (1 - one ** self.steps)
        for weight, m, v in zip(self.parameters, self.m, self.v):
            m.mul_(one).add_(weight.grad, alpha=1 - one)
            v.mul_(two).add_(weight.grad.double() ** 2, alpha=1 - two)
            update = m / (v.sqrt() + 1e-8) + self.decay * weight
            norms = weight.double().norm().item(), update.norm().item()
            ratio = min(max(norms[0] / norms[1], 0.01), 10.0) if all(norms) else 1.0
            weight -= size * ratio * update

    def zero_grad(self):
        for each in self.parameters:
            each.grad = None


class States8Bit:
    """AdamW and Lion with states in 8 bits as in bitsandbytes 0.50.2: create_dynamic_map, the default implementation of
    quantize_blockwise, and the formulas of the optimizers for the CPU."""

    def __init__(self, parameters, lr, weight_decay, betas, min_8bit_size, lion=False):
        self.parameters, self.lr, self.decay, self.betas = list(parameters), lr, weight_decay, betas
        self.lion, self.steps, self.least = lion, 0, min_8bit_size
        self.states = [[torch.zeros_like(each).flatten() for _ in range(1 if lion else 2)] for each in self.parameters]
        self.maps = [self.map_of(signed) for signed in (True, False)]

    @staticmethod
    def map_of(signed):
        data = [0.0, 1.0]
        for i in range(7):
            edges = torch.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
            means = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
            data += means.tolist() + (-means).tolist() * signed
        return torch.tensor(sorted(data))

    @staticmethod
    def rounded(values, numbers):
        """The values that are left of these in 8 bits."""
        def block(part):
            largest = part.abs().max()
            codes = torch.bucketize((part / largest.clamp(min=1e-38)).clamp(-1, 1), (numbers[:-1] + numbers[1:]) / 2)
            return numbers[codes] * largest
        return torch.cat([block(part) for part in values.split(256)])

    @torch.no_grad()
    def step(self):
        self.steps += 1
        one, two = self.betas
        for weight, states in zip(self.parameters, self.states):
            grad, m = weight.grad.flatten(), states[0]
            if self.lion:
                update = self.lr * (one * m + (1 - one) * grad).sign()
                m.mul_(two).add_(grad, alpha=1 - two)
            else:
                m.mul_(one).add_(grad, alpha=1 - one)
                states[1].mul_(two).addcmul_(grad, grad, value=1 - two)
                divisor = (states[1] / (1 - two ** self.steps)).sqrt() + 1e-8
                update = self.lr / (1 - one ** self.steps) * m / divisor
            weight.mul_(1 - self.lr * self.decay).sub_(update.view_as(weight))
            if weight.numel() >= self.least:
                for number, state in enumerate(states):
                    states[number] = self.rounded(state, self.maps[number])

    zero_grad = FormulaOfLamb.zero_grad


def torchs(name, options):
    return lambda model: getattr(torch.optim, name)(model.parameters(), **options)


def ours(name, options):
    return lambda acc, model: getattr(acc, name)(model, **options)


IN_8_BITS = {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "min_8bit_size": 100}
LAMB = {"lr": 5e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}
MUON = {"lr": 0.02, "weight_decay": 0.1}
ADAM_LR = 3e-3
ADAFACTOR = {"lr": 3e-2, "weight_decay": 0.1}
NOT_MATRICES = [{"params": ["embedding.*", "head.*"], "name": "others", "matrices": False}]
PLAIN = {
    "AdamW": ("AdamW", {"lr": 1e-2, "weight_decay": 0.1}),
    "AdamW amsgrad": ("AdamW", {"lr": 1e-2, "betas": (0.8, 0.6), "amsgrad": True}),
    "Adam": ("Adam", {"lr": 1e-2, "weight_decay": 0.1}),
    "NAdam": ("NAdam", {"lr": 1e-2, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {"lr": 3e-2, "lr_decay": 0.1, "weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {"lr": 3e-3, "alpha": 0.9, "momentum": 0.5, "centered": True}),
    "SGD": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}
# Name: torch's, ours, the largest difference of a weight after 20 steps.
OPTIMIZERS = {name: (torchs(*given), ours(*given), 2e-5) for name, given in PLAIN.items()}
for scaling, nesterov in ((None, True), ("match_rms_adamw", False)):
    options = MUON | {"adjust_lr_fn": scaling, "nesterov": nesterov}
    OPTIMIZERS[f"Muon {scaling}"] = (
        lambda model, given=options: TorchMuon(model.named_parameters(), ADAM_LR, **given),
        lambda acc, model, given=options: acc.Muon(model, **given, adam_lr=ADAM_LR, groups=NOT_MATRICES), 2e-5)


OPTIMIZERS["Lamb"] = (lambda model: FormulaOfLamb(model.parameters(), **LAMB), ours("Lamb", LAMB), 2e-5)


OPTIMIZERS["Adafactor"] = (
    torchs("Adafactor", ADAFACTOR), ours("Adafactor", ADAFACTOR), 2e-5)
try:
    from transformers.optimization import Adafactor
except ImportError as error:
    print(f"without the Adafactor of transformers: {error}")
else:
    for name, options in {"relative": {}, "moment": {"lr": 1e-2, "beta1": 0.9, "weight_decay": 0.1,
                                                     "relative_step": False, "scale_parameter": False}}.items():
        OPTIMIZERS[f"Adafactor of transformers, {name}"] = (
            lambda model, given=options: Adafactor(model.parameters(), **given),
            ours("AdafactorTransformers", options), 2e-5)
SOAP = {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "adam_lr": ADAM_LR}
# A longer side has fewer directions in its gradients than elements: any basis of the rest is one of eigenvectors.
OPTIMIZERS["SOAP"] = (
    lambda model: FormulaOfSoap(model.named_parameters(), **SOAP, frequency=5, largest=8),
    ours("SOAP", SOAP | {"precondition_frequency": 5, "max_precondition_dim": 8, "groups": NOT_MATRICES}), 1e-4)
SHAMPOO = {"lr": 3e-2, "weight_decay": 0.1, "momentum": 0.5, "adam_lr": ADAM_LR}
OPTIMIZERS["Shampoo"] = (
    lambda model: FormulaOfShampoo(model.named_parameters(), **SHAMPOO, frequency=3),
    ours("Shampoo", SHAMPOO | {"precondition_frequency": 3, "groups": NOT_MATRICES}), 2e-5)


SGD = {"lr": 0.05, "momentum": 0.9}


def momentum_rule(shards):
    for each in shards:
        each.states["velocity"].mul_(SGD["momentum"]).add_(each.gradient)
        each.weights.sub_(each.states["velocity"], alpha=SGD["lr"])


def shampoo_rule(matrix):
    """FormulaOfShampoo, as a function of one matrix."""
    own, grad = matrix.states, matrix.values.double()
    roots = []
    for side, gram in (("left", grad @ grad.T), ("right", grad.T @ grad)):
        own[side] += gram if matrix.step > 1 else gram + 1e-4 * torch.eye(len(gram))
        values, vectors = torch.linalg.eigh(own[side].double())
        roots.append(vectors @ torch.diag(values.clamp(min=1e-4) ** -0.25) @ vectors.T)
    own["velocity"].mul_(SHAMPOO["momentum"]).add_(roots[0] @ grad @ roots[1])
    matrix.values.copy_(own["velocity"])


OPTIMIZERS["a rule of the program"] = (
    torchs("SGD", SGD), lambda acc, model: acc.UpdateRule(model, momentum_rule, states=["velocity"]), 2e-5)
OPTIMIZERS["a rule of the program for matrices"] = (
    lambda model: FormulaOfShampoo(model.named_parameters(), **SHAMPOO | {"adam_lr": SHAMPOO["lr"]}, frequency=1),
    lambda acc, model: acc.MatrixRule(
        model, shampoo_rule, {"left": "rows_by_rows", "right": "columns_by_columns", "velocity": "whole"},
        groups=NOT_MATRICES, lr=SHAMPOO["lr"], weight_decay=SHAMPOO["weight_decay"]), 2e-5)


# A value halfway between two numbers of 8 bits is rounded by the last bit of a gradient, which depends on the number of
# ranks. States in float32 change the weights by 3e-3 and more.
for name in ("AdamW", "Lion"):
    OPTIMIZERS[f"{name} in 8 bits"] = (
        lambda model, lion=name == "Lion": States8Bit(model.parameters(), **IN_8_BITS, lion=lion),
        ours(name, IN_8_BITS | {"states_8bit": True}), 1e-3)


def expected_weights(name):
    model = made()
    optimizer = OPTIMIZERS[name][0](model)
    for step in range(STEPS):
        model(batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {key: value.detach() for key, value in model.named_parameters()}


def worker(folder, phase):
    import acclaunch.torch as acc

    torch.set_num_threads(1)
    for number, (strategy, gather) in enumerate(MODES):
        os.environ |= {"FSDP_SHARDING_STRATEGY": strategy, "ACC_SHM_GATHER": gather}
        runtime = acc.Runtime()
        rows = slice(runtime.rank * ROWS // runtime.world_size, (runtime.rank + 1) * ROWS // runtime.world_size)
        for name in OPTIMIZERS if number == 0 else IN_EACH_MODE:
            _, ours_of, tolerance = OPTIMIZERS[name]
            model = acc.fully_shard(made(), runtime, units=[Block])
            optimizer = ours_of(acc, model)
            saved = f"{folder}/{number} {name}"
            if phase == 1:
                runtime.load(saved, model, optimizer)
            for step in range(phase * STEPS // 2, (phase + 1) * STEPS // 2):
                model(batch(step)[rows]).backward()
                optimizer.step()
            if phase == 0:
                runtime.save(saved, model, optimizer)
                continue
            weights = acc.state_dict(model)
            if runtime.rank == 0:
                for key, value in torch.load(f"{folder}/{name}.pt").items():
                    worst = (weights[key] - value).abs().max().item()
                    assert worst <= tolerance, f"{name}, {strategy} {gather}: {key} differs by {worst}"
            runtime.barrier()
    print("trained", flush=True)


def main():
    acclaunch, package = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name in OPTIMIZERS:
            torch.save(expected_weights(name), f"{folder}/{name}.pt")
        for phase, ranks in enumerate(RANKS):
            process = subprocess.run(
                [acclaunch, "--cpu", "--use_fsdp", "--preload", "torch._dynamo", "--num_processes", str(ranks),
                 pathlib.Path(__file__), folder, str(phase)],
                env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable,
                                  "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
            assert process.returncode == 0 and process.stdout.count("trained") == ranks, process.stdout + process.stderr


if __name__ == "__main__":
    worker(sys.argv[1], int(sys.argv[2])) if "RANK" in os.environ else main()
