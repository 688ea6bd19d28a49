# SPDX-License-Identifier: Apache-2.0
"""engine_optimizers_test.py ACCLAUNCH PACKAGE: trains a small module for ten steps with each optimizer of torch.optim,
and with those of transformers and bitsandbytes that are installed, on the engine acc, on two ranks, and compares the
weights with those of the same program on whole parameters. All ranks have the same batches, so that the mean of the
gradients is exact. Those that the engine refuses, it refuses by name. Exits with 77 without torch."""

import contextlib
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from run_ranks import train_on  # noqa: E402

train_on(2, flags=("--engine", "acc"), preload="torch.distributed")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

STEPS, WORDS, SIZE = 10, 13, 6

# Class: options, and the largest difference of a weight; or a part of the message that refuses it.
SERVED = {
    "ASGD": ({"lr": 1e-2, "t0": 3, "weight_decay": 0.1}, 0.0),
    "Adadelta": ({"lr": 0.5, "weight_decay": 0.1}, 0.0),
    "Adafactor": ({"lr": 3e-2, "weight_decay": 0.1}, 2e-6),
    "Adagrad": ({"lr": 3e-2, "lr_decay": 0.1}, 0.0),
    "Adam": ({"lr": 1e-2, "amsgrad": True, "weight_decay": 0.1}, 0.0),
    "AdamW": ({"lr": 1e-2}, 0.0),
    "Adamax": ({"lr": 1e-2}, 0.0),
    "LBFGS": ({"lr": 0.1, "max_iter": 3, "history_size": 4}, 2e-5),
    "Muon": ({"lr": 2e-2}, 0.0),
    "NAdam": ({"lr": 1e-2}, 0.0),
    "RAdam": ({"lr": 1e-2}, 0.0),
    "RMSprop": ({"lr": 3e-3, "momentum": 0.5, "centered": True}, 0.0),
    "Rprop": ({"lr": 1e-2}, 0.0),
    "SGD": ({"lr": 5e-2, "momentum": 0.9, "nesterov": True}, 0.0),
}
# Unusual options, with unusual gradients and parameters (Odd); equal bit by bit, but for the last elements of a tensor
# in a fused update of torch.
ODD = [
    ("Adam", {"lr": torch.tensor(1e-2), "betas": (0.0, 0.9), "maximize": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 1e-2, "foreach": True, "decoupled_weight_decay": True}),
    ("AdamW", {"lr": 0.0, "foreach": False, "amsgrad": True}),
    ("AdamW", {"lr": 1e-2, "fused": True, "eps": 1e-3}),
    ("SGD", {"lr": 1e-2, "momentum": 0.9, "dampening": 0.3, "maximize": True, "foreach": True}),
    ("SGD", {"lr": torch.tensor(1e-2), "weight_decay": 1.0, "foreach": False}),
    ("RMSprop", {"lr": 1e-3, "alpha": 0.5, "momentum": 0.7, "maximize": True}),
    ("NAdam", {"lr": 1e-2, "momentum_decay": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adagrad", {"lr": 1e-2, "initial_accumulator_value": 0.2, "maximize": True}),
    ("Muon", {"lr": 2e-2, "adjust_lr_fn": "match_rms_adamw", "nesterov": False, "ns_steps": 3}),
]
# The 8-bit states of bitsandbytes, of all parameters.
BITSANDBYTES = {
    "Adam8bit": {"lr": 1e-2, "weight_decay": 0.1},
    "AdamW8bit": {"lr": 1e-2, "betas": (0.8, 0.95)},
    "Lion8bit": {"lr": 1e-3, "weight_decay": 0.1},
    "SGD8bit": {"lr": 5e-2, "momentum": 0.9},
}
REFUSED = {"SparseAdam": "does not support dense gradients"}
TRANSFORMERS = {
    "relative": ({}, 2e-6),
    "warmup": ({"warmup_init": True, "weight_decay": 0.1}, 2e-6),
    "moment": ({"lr": 1e-2, "beta1": 0.9, "relative_step": False, "scale_parameter": False}, 2e-6),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 11), nn.Linear(11, SIZE, bias=False)
        self.mix = nn.Conv1d(SIZE, SIZE, 3, padding=1)

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(SIZE, WORDS)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy((self.scale * self.head(x)).flatten(0, 1), ids.flatten())


class Wide(Net):
    """With parameters of several blocks of 8-bit states, which the rows of a rank divide."""

    def __init__(self):
        super().__init__()
        self.wide, self.tall = nn.Parameter(torch.randn(7, 101)), nn.Parameter(torch.randn(900, 1))

    def forward(self, ids):
        return super().forward(ids) + self.wide.sin().mean() + self.tall.cos().mean()


class WithOptions(Wide):
    """With options of one parameter and of a module's, which bitsandbytes keeps by objects."""

    def __init__(self):
        super().__init__()
        from bitsandbytes.optim import GlobalOptimManager
        manager = GlobalOptimManager.get_instance()
        manager.initialize()
        manager.override_config(self.wide, key_value_dict={"optim_bits": 32, "lr": 3e-3})
        manager.register_module_override(self.head, "weight", {"optim_bits": 32, "betas": (0.5, 0.9)})


class Odd(Net):
    """With a frozen parameter, and with some of no and of one element."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WORDS, WORDS).requires_grad_(False)
        self.one, self.empty, self.rows = (nn.Parameter(torch.ones(shape)) for shape in ((1, 1), (0,), (0, 4)))

    def forward(self, ids):
        return super().forward(ids) * self.one.sum() + self.empty.sum() + self.rows.sum() + self.frozen.bias.sum()


@torch.no_grad()
def change(step, optimizer):
    """Before a step: gradients of zero, huge or tiny ones, one that is missing, another rate for a part of them."""
    for group in optimizer.param_groups:
        for each in group["params"]:
            if each.grad is not None:
                each.grad.mul_({2: 0.0, 6: 1e-30, STEPS - 1: 1e15}.get(step, 1.0))
        group["params"][0].grad = None if step == 3 else group["params"][0].grad
        if step == 7:
            group["lr"] = group["lr"] / 2


def whole(tensor):
    if not hasattr(tensor, "full_tensor"):
        return tensor.detach()
    return tensor.detach().full_tensor() if tensor.numel() else torch.empty(tensor.shape)


def gather_states(optimizer):
    """As load_state_dict of the states of an optimizer that is not sharded."""
    for state in optimizer.state.values():
        state.update({key: whole(value).clone() for key, value in state.items() if hasattr(value, "full_tensor")})


def trained(cls, options, sharded, kind=Net):
    """Weights after STEPS steps, whole."""
    torch.manual_seed(3)
    net = kind()
    if sharded:
        from torch.distributed.fsdp import fully_shard
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    parts = [list(net.parameters())]
    if cls.__name__ == "Muon":
        parts = [[each for each in net.parameters() if (each.dim() == 2) == matrices] for matrices in (True, False)]
    optimizers = [cls(parts[0], **options)] + [torch.optim.SGD(part, lr=5e-2) for part in parts[1:]]
    for step in range(STEPS):
        ids = torch.randint(WORDS, (4, 5), generator=torch.Generator().manual_seed(step))

        def closure():
            for each in optimizers:
                each.zero_grad()
            loss = net(ids)
            loss.backward()
            return loss

        if cls is torch.optim.LBFGS:
            optimizers[0].step(closure)
            continue
        closure()
        for each in optimizers:
            if kind is Odd:
                change(step, each)
            if step == 4 and kind in (Odd, WithOptions):
                gather_states(each)
            each.step()
    return {name: whole(each) for name, each in net.named_parameters() if each.numel()}


def cases():
    for name, (options, tolerance) in SERVED.items():
        if hasattr(torch.optim, name):
            yield name, getattr(torch.optim, name), options, tolerance, Net
    for name, options in ODD:
        if hasattr(torch.optim, name):
            tolerance = 1e-7 if options.get("fused") else 0.0
            yield f"{name} with {options}", getattr(torch.optim, name), options, tolerance, Odd
    yield "Adafactor of columns", torch.optim.Adafactor, *SERVED["Adafactor"], Wide
    try:
        from transformers.optimization import Adafactor
        for name, (options, tolerance) in TRANSFORMERS.items():
            yield f"Adafactor of transformers, {name}", Adafactor, options, tolerance, Net
    except ImportError as error:
        print(f"without the Adafactor of transformers: {error}")
    try:
        from bitsandbytes import optim
        for name, options in BITSANDBYTES.items():
            yield f"{name} of bitsandbytes", getattr(optim, name), options | {"min_8bit_size": 1}, 0.0, Wide
        yield ("bitsandbytes with options of parameters", optim.AdamW8bit, {"lr": 1e-2, "min_8bit_size": 1}, 0.0,
               WithOptions)
    except ImportError as error:
        print(f"without bitsandbytes: {error}")


def faults():
    """Lines about the optimizers that differ from the plain program."""
    every = {name for name, each in vars(torch.optim).items() if isinstance(each, type)} - {"Optimizer"}
    if every - SERVED.keys() - REFUSED.keys():
        yield f"no row for {sorted(every - SERVED.keys() - REFUSED.keys())}"
    for name, cls, options, tolerance, kind in cases():
        try:
            ours = trained(cls, options, True, kind)
        except Exception as error:  # the others still run
            yield f"{name}: {type(error).__name__}: {str(error)[:300]}"
            continue
        for key, value in trained(cls, options, False, kind).items():
            worst = (ours[key] - value).abs().max().item()
            if not worst <= tolerance:
                yield f"{name}: {key} differs by {worst}"
    bitsandbytes = type("AdamW8bit", (torch.optim.AdamW,), {"__module__": "bitsandbytes.optim.adamw"})
    own = type("OwnAdamW8bit", (bitsandbytes,), {"__module__": "own"})
    refused = [(name, getattr(torch.optim, name), message) for name, message in REFUSED.items()] + [
        ("bitsandbytes", bitsandbytes, "bitsandbytes.optim.adamw.AdamW8bit on parameters that are divided"),
        ("a subclass of one", own, "own.OwnAdamW8bit on parameters that are divided")]
    with contextlib.suppress(ImportError):
        from bitsandbytes.optim import Adam8bit
        refused.append(("an option of parameters", type("Normed", (Adam8bit,), {
            "__module__": "bitsandbytes.optim.adam",
            "get_config": lambda self, *place: Adam8bit.get_config(self, *place) | {"max_unorm": 1.0}}),
            "bitsandbytes with the state 'unorm_vec'"))
    for name, cls, message in refused:
        try:
            trained(cls, {"lr": 1e-2}, True)
            yield f"{name} is not refused"
        except Exception as error:
            if message not in str(error):
                yield f"{name}: {type(error).__name__}: {str(error)[:300]}"


def worker():
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = list(faults())
    for line in found:
        print(line, flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print("trained" if not found else "different", flush=True)


if __name__ == "__main__":
    worker()
