# SPDX-License-Identifier: Apache-2.0
"""torch_alone_test.py ACCLAUNCH PACKAGE: a script in a new virtual environment that has torch and what torch
requires, and nothing else, not even NumPy. With PYTHONPATH it shards, trains, saves and loads a module, and
uses the back end acc. Exits with 77 without torch."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import venv

SCRIPT = '''
import importlib.util, json, os, subprocess, sys
for name in ("numpy", "accelerate", "deepspeed"):
    assert importlib.util.find_spec(name) is None, name
import torch
import torch.distributed as dist
import acclaunch.torch as acc

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
runtime = acc.Runtime()
acc.fully_shard(model, runtime, units=[torch.nn.Linear])
optimizer = acc.AdamW(model, lr=1e-2)

def train(steps):
    inputs = torch.arange(16.0).view(2, 8) / 16 + runtime.rank
    for _ in range(steps):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
    return runtime.mean(loss)

first = train(2)
runtime.save(sys.argv[1], model, optimizer, {"epoch": 3})
later = train(3)
assert later < first, (first, later)
assert runtime.load(sys.argv[1], model, optimizer).get("epoch") == 3
assert train(3) == later
runtime.report({"loss": later, "accuracy": float("nan")})
try:
    runtime.report({"two words": 1})
    raise AssertionError("an impossible name")
except acc.InvalidArgumentError as error:
    assert "left out" in str(error), error
jobs = json.loads(subprocess.check_output([sys.argv[2], "top", "--json"]))
shown, = (rank for job in jobs for rank in job["ranks"] if rank["pid"] == os.getpid())
assert (shown["step"], shown["loss"], shown["not_finite"]) == (5, later, ["accuracy"]), shown
dist.init_process_group("acc")
total = torch.ones(3)
dist.all_reduce(total)
assert total.tolist() == [2.0] * 3
dist.destroy_process_group()
print("trained", flush=True)
'''


def required(name, found):
    """Adds a distribution and those that it requires to `found`, by name."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return found  # for another platform
    if distribution.metadata["Name"] not in found:
        found[distribution.metadata["Name"]] = distribution
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                required(re.match(r"[\w.-]+", requirement).group(), found)
    return found


def link(distribution, folder):
    """Makes the files of a distribution visible in a folder of site-packages."""
    for name in {each.parts[0] for each in distribution.files} - {"..", "__pycache__"}:
        target = folder / name
        if not target.exists():
            target.symlink_to(pathlib.Path(distribution.locate_file(name)).absolute())


def main():
    acclaunch, package = sys.argv[1:]
    distributions = required("torch", {})
    if "torch" not in distributions:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, symlinks=True)
        (site_packages,) = pathlib.Path(folder).glob("lib/python*/site-packages")
        for each in distributions.values():
            link(each, site_packages)
        script = pathlib.Path(folder) / "train.py"
        script.write_text(SCRIPT)
        done = subprocess.run(
            [acclaunch, "--cpu", "--num_processes", "2", "--main_process_port", "0", "--use_fsdp",
             f"{folder}/bin/python", str(script), f"{folder}/saved", acclaunch],
            env=os.environ | {"PYTHONPATH": package, "PYTHONWARNINGS": "ignore"}, text=True,
            timeout=900, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stdout


if __name__ == "__main__":
    main()
