# SPDX-License-Identifier: Apache-2.0
"""The real Accelerate and torch read the files of our save folder, and we read theirs.

  accelerate_checkpoint_test.py PEER_FILES
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from accelerate import Accelerator
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import OptimStateKeyType
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PEER_FILES = sys.argv[1]


class Counters:
    """An object that a program registers for checkpointing."""

    def __init__(self):
        self.values = {}

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values = dict(state)


def make(accelerator, kind):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    counters = Counters()
    accelerator.register_for_checkpointing(counters)
    return *accelerator.prepare(model, optimizer, scheduler), counters


def train(model, optimizer, scheduler, steps):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        model(torch.randn(4, 5, generator=generator)).square().sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def check_optimizer(ours, original):
    """Compares keys, hyperparameters and every state, bit for bit, after a load into a new optimizer."""
    loaded, expected = ours.state_dict(), original.state_dict()
    for group, wanted in zip(loaded["param_groups"], expected["param_groups"], strict=True):
        # set_optimizer_state_dict turns tuples into lists.
        group["betas"] = tuple(group.get("betas", ()))
        assert group == {"betas": (), **wanted}, group
    assert loaded["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        assert loaded["state"][number].keys() == state.keys()
        for key, value in state.items():
            assert same(loaded["state"][number][key], value), (number, key)


def load_named(path, model, fresh, original):
    """Loads a FULL optimizer as FSDP 1 (by numbers) and FSDP 2 (by the model's names) do."""
    named = torch.load(path, weights_only=True)
    numbered = FSDP.rekey_optim_state_dict(named, OptimStateKeyType.PARAM_ID, model)
    first = fresh()
    first.load_state_dict(numbered)
    check_optimizer(first, original)
    second = fresh()
    set_optimizer_state_dict(
        model, second, torch.load(path, weights_only=True),
        options=StateDictOptions(full_state_dict=True))
    check_optimizer(second, original)


def check(kind, safe_serialization):
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler, counters = make(accelerator, kind)
    train(model, optimizer, scheduler, 3)
    counters.values = {"epoch": 4, "loss": 0.25, "name": "first run"}
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder, "theirs"), Path(folder, "ours")
        accelerator.save_state(theirs, safe_serialization=safe_serialization)
        torch.save(scaler.state_dict(), theirs / "scaler.pt")
        ours.mkdir()
        subprocess.run([PEER_FILES, "accelerate", theirs, ours], check=True)

        weights = torch.load(ours / "pytorch_model_fsdp.bin", weights_only=True)
        assert weights.keys() == model.state_dict().keys()
        assert all(same(weights[name], value) for name, value in model.state_dict().items())

        def fresh():
            parameters = model.parameters()
            result = (torch.optim.AdamW(parameters) if kind == "adamw"
                      else torch.optim.SGD(parameters, lr=0.5, momentum=0.5))
            # A schedule adds initial_lr to the groups, as in every run that has one.
            torch.optim.lr_scheduler.LambdaLR(result, lambda step: 1.0)
            return result

        load_named(ours / "optimizer.bin", model, fresh, optimizer.optimizer)
        restored = torch.amp.GradScaler("cpu")
        restored.load_state_dict(torch.load(ours / "scaler.pt", weights_only=True))
        assert restored.state_dict() == scaler.state_dict()

        # Accelerate's own load_state, with our files instead of those whose names are the same with
        # and without FSDP.
        for name in ("scheduler.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl"):
            shutil.copy(ours / name, theirs / name)
        accelerator.free_memory()
        other = Accelerator(cpu=True)
        model2, optimizer2, scheduler2, counters2 = make(other, kind)
        other.load_state(theirs)
        assert other.step == 17
        assert counters2.values == counters.values
        assert scheduler2.state_dict() == scheduler.state_dict(), scheduler2.state_dict()
        assert scheduler2.get_last_lr() == scheduler.get_last_lr()
        train(model, optimizer, scheduler, 2)
        train(model2, optimizer2, scheduler2, 2)
        for a, b in zip(model.parameters(), model2.parameters()):
            assert same(a, b)


for kind in ("adamw", "sgd"):
    for safe_serialization in (True, False):
        check(kind, safe_serialization)
print("ok")
