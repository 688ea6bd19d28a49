# SPDX-License-Identifier: Apache-2.0
"""estimate_matrices_test.py ACCLAUNCH PACKAGE: compares estimate-memory with the memory that the runtime reports for
optimizers of matrices, whose states lie on the owners, on two ranks. Exits with 77 without torch."""

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

if not importlib.util.find_spec("torch"):
    print("skipped: no torch")
    sys.exit(77)
if "RANK" in os.environ:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 128), nn.Linear(128, SIZE)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, SIZE)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
            self.head = nn.Linear(SIZE, WORDS)

        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

SIZE, WORDS, BLOCKS = 64, 16, 4
STRATEGIES = {"FULL_SHARD": "FULL_SHARD", "NO_SHARD": "ZeRO 0, NO_SHARD"}  # rows of the table
OPTIMIZERS = ("AdamW", "Muon", "SOAP", "Shampoo")


def worker(path):
    import acclaunch.torch as acc

    for strategy in STRATEGIES:
        os.environ["FSDP_SHARDING_STRATEGY"] = strategy
        runtime = acc.Runtime()
        for name in OPTIMIZERS:
            net = acc.fully_shard(Net(), runtime)
            if name == OPTIMIZERS[0]:
                acc.export_weights(net, path)
            made = getattr(acc, name)(net, lr=1e-3,
                                      groups=[{"params": ["embedding.weight", "head.*"], "matrices": False}])
            found = acc.memory_report(net)["optimizer_bytes"]
            print(f"found {strategy} {name} {found}", flush=True)
            del made


def in_bytes(text):
    number, unit = text.split()
    return float(number) * 1024 ** ("B", "KiB", "MiB").index(unit)


@functools.cache
def foretold(acclaunch, path, optimizer, row):
    table = subprocess.run([acclaunch, "estimate-memory", path, "--cpu", "--num_processes", "2", "--optimizer",
                            optimizer.lower()], capture_output=True, text=True, check=True).stdout
    lines = [[each.strip() for each in line.split("  ") if each.strip()] for line in table.splitlines()]
    columns = next(each for each in lines if each[:1] == ["strategy"])
    return in_bytes(next(each for each in lines if each[:1] == [row])[columns.index("optimizer")])


def main():
    acclaunch, package = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.safetensors"
        run = subprocess.run([acclaunch, "--quiet", "--cpu", "--preload", "torch", "--num_processes", "2", "--use_fsdp",
                              pathlib.Path(__file__), path],
                             env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable},
                             capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        found = [line.split()[-3:] for line in run.stdout.splitlines() if "] found " in line]
        assert len(found) == 2 * len(STRATEGIES) * len(OPTIMIZERS), run.stdout
        for strategy, name, nbytes in found:
            expected = foretold(acclaunch, path, name, STRATEGIES[strategy])
            assert abs(int(nbytes) - expected) <= 0.02 * expected, (strategy, name, nbytes, expected)


if __name__ == "__main__":
    worker(sys.argv[1]) if "RANK" in os.environ else main()
