# SPDX-License-Identifier: Apache-2.0
"""torch_rejoin_test.py ACCLAUNCH PACKAGE: workers that train with acclaunch.torch and are killed in a forward, a
backward, a step or a save are started again alone (--rejoin). Losses must equal those of an undisturbed run, bit for
bit. Exits with 77 without torch."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from torch import nn
from torch.nn import functional as F

STEPS, WORDS, SIZE = 8, 13, 8
# (rank, steps made, place) of each kill, by the kind of the optimizer.
KILLS = {"runtime": [(1, 0, "forward"), (0, 2, "backward"), (0, 5, "step")],
         "torch": [(1, 1, "before the step"), (0, 3, "step"), (1, 6, "save")],
         "unsaved": [(1, 0, "forward")]}
# With nothing to go back to, the new rank and the one that is left end too, each as a restart.
RESTARTS = {"runtime": 3, "torch": 3, "unsaved": 3}


class Killer:
    """Kills this rank at each of its places once in the job."""

    def __init__(self, folder, rank, kills):
        self.folder, self.rank, self.kills, self.steps = folder, rank, kills, 0

    def at(self, place):
        marker = self.folder / f"killed {self.steps} {place}"
        if (self.rank, self.steps, place) in self.kills and (self.folder / "kills").exists() and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Block(nn.Module):
    def __init__(self, killer):
        super().__init__()
        self.linear, self.killer = nn.Linear(SIZE, SIZE), killer

    def forward(self, x):
        self.killer.at("forward")
        x = F.dropout(F.gelu(self.linear(x)), 0.1)
        if x.requires_grad:
            x.register_hook(lambda _: self.killer.at("backward"))
        return x


class Net(nn.Module):
    """Blocks, a tied weight, the buffers of a BatchNorm, and a buffer that is in no checkpoint."""

    def __init__(self, killer):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.norm = nn.BatchNorm1d(SIZE)
        self.blocks = nn.ModuleList(Block(killer) for _ in range(3))
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, SIZE), persistent=False)

    def forward(self, ids):
        x = self.norm(self.embedding(ids)) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x), ids)


def make(acc, runtime, killer, kind):
    torch.manual_seed(7 + runtime.rank)  # rank 0's values count
    if kind == "torch":
        model = acc.fully_shard(Net(killer), runtime)
        optimizer = acc.TorchOptimizer(model, torch.optim.AdamW, lr=1e-2)
        optimizer.torch.register_step_post_hook(lambda *_: killer.at("step"))
    else:
        with torch.device("meta"):
            net = Net(killer)
        net.register_buffer("scale", torch.linspace(0.5, 1.5, SIZE), persistent=False)
        model = acc.fully_shard(net, runtime)
        optimizer = acc.AdamW(model, lr=1e-2)

        def rate(step, base):
            killer.at("step")
            return base / (1 + step)

        optimizer.set_schedule(rate)
    return model, optimizer


def worker(folder, kind):
    import acclaunch.torch as acc

    folder = pathlib.Path(folder)
    print("started", flush=True)
    runtime = acc.Runtime()
    killer = Killer(folder, runtime.rank, KILLS[kind])
    model, optimizer = make(acc, runtime, killer, kind)
    series = acc.CheckpointSeries(runtime, folder / "series", total_limit=2)
    rejoins = False
    while True:
        try:
            state = series.rejoin(model, optimizer) if rejoins else series.resume(model, optimizer)
            made = state.get("made") if state else 0
            assert made == optimizer.steps
            if state is None and kind != "unsaved":
                series.save(model, optimizer, {"made": 0})  # whole when it returns
            for made in range(made, STEPS):
                killer.steps = made
                torch.manual_seed(100 * made + runtime.rank)
                loss = model(torch.randint(WORDS, (6,)))
                loss.backward()
                killer.at("before the step")
                optimizer.step()
                with open(folder / f"losses of {runtime.rank}", "a") as out:
                    print(made, loss.item().hex(), file=out)
                series.keep_in_memory(model, optimizer, {"made": made + 1})
                killer.at("save")
                if made == 6:
                    series.save(model, optimizer, {"made": made + 1})
            runtime.barrier()
            return
        except acc.Error as error:
            if not series.can_rejoin(error):
                raise
            rejoins = True


def losses(folder, rank):
    found = collections.defaultdict(set)
    for line in (folder / f"losses of {rank}").read_text().splitlines():
        step, loss = line.split()
        found[int(step)].add(loss)
    return dict(found)


def run(folder, kind, strategy, kills):
    acclaunch, package = sys.argv[1:]
    folder.mkdir()
    if kills:
        (folder / "kills").touch()
    job = subprocess.run([acclaunch, "--cpu", "--num_processes", "2", "--use_fsdp", "--fsdp_sharding_strategy",
                          strategy, "--max_restarts", str(RESTARTS[kind]), "--rejoin",
                          "--memory_checkpoint_every", "1", "--shutdown_timeout", "300",
                          os.path.abspath(__file__), folder, kind],
                         env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable},
                         capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stdout + job.stderr
    said = job.stdout + job.stderr
    count = len(KILLS[kind]) if kills else 0
    if kills and kind == "unsaved":
        assert "no whole state to go back to" in said, said
    else:
        assert said.count("started") == 2 + count, said  # survivors keep their processes
        assert said.count("all workers have rejoined") == count, said
    return [losses(folder, rank) for rank in range(2)]


def main():
    undisturbed = {}  # by strategy
    for kind, strategy in (("runtime", "FULL_SHARD"), ("torch", "SHARD_GRAD_OP"), ("unsaved", "FULL_SHARD")):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if strategy not in undisturbed:
                undisturbed[strategy] = run(folder / "undisturbed", kind, strategy, False)
            assert all(len(found) == STEPS for found in undisturbed[strategy]), undisturbed
            disturbed = run(folder / "killed", kind, strategy, True)
            assert disturbed == undisturbed[strategy], (kind, disturbed, undisturbed)


if __name__ == "__main__":
    worker(*sys.argv[1:]) if "RANK" in os.environ else main()
