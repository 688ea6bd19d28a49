# SPDX-License-Identifier: Apache-2.0
"""accelerate_order_test.py ACCLAUNCH PACKAGE: Accelerate saves modules whose weights are stored in another
order than its optimizer numbers them. Our commands keep each moment with its weight or refuse; programs
that load such a folder continue as torch does. Exits with 77 without the packages."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from accelerate import Accelerator
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from torch import nn

SIZE = 6


class Net(nn.Module):
    """Layers in the order of `layers`, which is not that of their names."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.order = list(layers)

    def forward(self, x):
        for name in self.order:
            for layer in getattr(self, name) if name == "blocks" else [getattr(self, name)]:
                x = torch.tanh(layer(x))
        return x.square().mean()


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(SIZE, SIZE)
        self.base.requires_grad_(False)
        self.lora_B, self.lora_A = nn.Linear(2, SIZE, bias=False), nn.Linear(SIZE, 2, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


def square():
    return nn.Linear(SIZE, SIZE)


def frozen(layer):
    return layer.requires_grad_(False)


def plain():
    return Net(z=square(), a=square(), m=square())


def blocks():  # the root's parameters are declared before and after those of the units
    return Net(last=square(), blocks=nn.ModuleList([square(), square()]), first=square())


def decays(name):
    return not name.endswith("bias")


def one_group(net):
    return net.parameters()


def trained(net):
    return [each for each in net.parameters() if each.requires_grad]


def two_groups(net):
    named = list(net.named_parameters())
    return [{"params": [each for name, each in named if decays(name)], "weight_decay": 0.1},
            {"params": [each for name, each in named if not decays(name)], "weight_decay": 0.0}]


def exchanged_groups(net):
    return two_groups(net)[::-1]


def named(net):
    return net.named_parameters()


def different():
    return Net(z=nn.Linear(SIZE, 3), a=nn.Linear(3, 5), m=nn.Linear(5, 4))


def no_decay(net):
    """The second group of our optimizer; the others are in the first."""
    return [{"params": [name for name, _ in net.named_parameters() if not decays(name)],
             "name": "no decay", "weight_decay": 0.0}]


# Name: the module, the optimizer's argument, whether the files tell the names.
CASES = {
    "plain": (plain, one_group, False),
    "blocks": (blocks, one_group, False),
    "frozen, all in the optimizer": (lambda: Net(z=frozen(square()), a=square(), m=square()), one_group, False),
    "frozen, not in the optimizer": (lambda: Net(z=frozen(square()), b=square(), a=square()), trained, False),
    "lora": (lambda: Net(z=Lora(), a=Lora()), trained, False),
    "one lora": (lambda: Net(z=Lora()), trained, True),
    "batch norm": (lambda: Net(z=nn.BatchNorm1d(SIZE), a=square(), m=nn.BatchNorm1d(SIZE)), one_group, False),
    "two groups": (plain, two_groups, False),
    "two groups of the other order": (plain, exchanged_groups, False),
    "different shapes": (different, one_group, True),
    "different shapes in two groups": (different, two_groups, True),
    "names": (blocks, named, True),
}


def batches(first, count=3):
    for step in range(first, first + count):
        yield torch.randn(4, SIZE, generator=torch.Generator().manual_seed(step))


def safe_of(name):
    return len(name) % 2 == 0  # both forms of Accelerate's weights


def train(net, optimizer, first):
    for batch in batches(first):
        optimizer.zero_grad()
        net(batch).backward()
        optimizer.step()


def save(folder):
    """Saves each case after three steps, and the weights after three more."""
    after = {}
    for name, (make, parameters, _) in CASES.items():
        torch.manual_seed(3)
        accelerator = Accelerator(cpu=True)
        net = make()
        net, optimizer = accelerator.prepare(
            net, torch.optim.AdamW(parameters(net), lr=0.05, weight_decay=0.1))
        train(net, optimizer, 0)
        accelerator.save_state(folder / name, safe_serialization=safe_of(name))
        moments = {each: optimizer.state[parameter]["exp_avg"].clone()
                   for each, parameter in net.named_parameters() if parameter in optimizer.state}
        train(net, optimizer, 3)
        after[name] = {"moments": moments, "weights": net.state_dict()}
        accelerator.free_memory()
    torch.save(after, folder / "after.pt")
    return after


def load(folder):
    """The worker: continues each case on two ranks."""
    import acclaunch.torch as acc

    runtime = acc.Runtime()
    after = torch.load(folder / "after.pt")
    for name, (make, parameters, _) in CASES.items():
        torch.manual_seed(4)
        net = acc.fully_shard(make(), runtime)
        groups = no_decay(net) if parameters in (two_groups, exchanged_groups) else ()
        optimizer = acc.AdamW(net, lr=0.05, weight_decay=0.1, groups=groups)
        runtime.load(folder / name, net, optimizer)
        train(net, optimizer, 3)
        for key, value in acc.state_dict(net, rank0_only=False).items():
            expected = after[name]["weights"][key]
            assert torch.allclose(value.to(expected.dtype), expected, rtol=1e-5, atol=1e-6), (
                name, key, value, expected)
    refused = acc.fully_shard(Net(z=square(), a=square()), runtime)
    try:
        runtime.load(folder / "plain", refused, acc.AdamW(refused))
        raise AssertionError("loaded into a model without 'm'")
    except acc.ConfigError as error:
        assert "its 6 parameters do not fit the 4 of this program" in str(error), error
    print("continued", flush=True)


def run(acclaunch, *arguments):
    made = subprocess.run([acclaunch, *map(str, arguments)], capture_output=True, text=True)
    return made.returncode, made.stdout + made.stderr


def check_moments(optimizer_folder, expected, scratch):
    dcp_to_torch_save(optimizer_folder, scratch)
    state = torch.load(scratch, weights_only=False)["optimizer"]["state"]
    assert state.keys() == expected.keys(), state.keys()
    for name, value in expected.items():
        assert torch.equal(state[name]["exp_avg"], value), name


def check_commands(acclaunch, path, expected, knows_names):
    code, text = run(acclaunch, "verify", path)
    assert code == 0 and "nothing is damaged" in text, text
    assert ("names unknown" in text) == (not knows_names), text
    code, text = run(acclaunch, "inspect", path)
    assert code == 0 and ("names:       unknown" in text) == (not knows_names), text
    code, text = run(acclaunch, "inspect", path, "--json")
    found = {tensor["name"] for tensor in json.loads(text)["tensors"] if tensor["kind"] == "exp_avg"}
    assert found == (expected.keys() if knows_names else {None}), found
    for target in ("dcp", "bin", "deepspeed"):
        out = path.with_suffix("." + target)
        code, text = run(acclaunch, "convert", path, out, "--to", target)
        assert code == (0 if knows_names else 2), text
        if knows_names and target == "dcp":
            check_moments(out / "optimizer_0", expected, path.with_suffix(".pt"))
        elif not knows_names:
            assert "numbers and no names" in text and not out.exists(), text
    assert run(acclaunch, "convert", path, path.with_suffix(".out"), "--to", "safetensors")[0] == 0


def check_dcp(acclaunch, folder):
    """A folder of torch DCP numbers parameters too, if a program saves a plain state dict."""
    for name, make, knows_names in (("dcp", plain, False), ("dcp different", different, True)):
        torch.manual_seed(3)
        net = make()
        optimizer = torch.optim.AdamW(net.parameters())
        train(net, optimizer, 0)
        dcp.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()},
                 checkpoint_id=folder / name)
        code, text = run(acclaunch, "convert", folder / name, folder / f"{name} out", "--to", "dcp")
        assert code == (0 if knows_names else 2), text
        if knows_names:
            check_moments(folder / f"{name} out" / "optimizer_0",
                          {each: optimizer.state[parameter]["exp_avg"]
                           for each, parameter in net.named_parameters()}, folder / "dcp.pt")
        code, text = run(acclaunch, "reshard", folder / name, folder / f"{name} two", "--num_processes", 2)
        assert code == 0, text


def main():
    acclaunch, package = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        after = save(folder)
        for name, (_, _, knows_names) in CASES.items():
            check_commands(acclaunch, folder / name, after[name]["moments"], knows_names)
        check_dcp(acclaunch, folder)
        worker = subprocess.run([acclaunch, "--cpu", "--num_processes", "2", "--use_fsdp", "--preload",
                                 "torch", os.path.abspath(__file__), folder],
                                env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable},
                                capture_output=True, text=True, timeout=900)
    assert worker.returncode == 0, worker.stdout + worker.stderr
    assert worker.stdout.count("continued") == 2, worker.stdout


if __name__ == "__main__":
    load(pathlib.Path(sys.argv[1])) if "RANK" in os.environ else main()
