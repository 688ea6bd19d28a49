# SPDX-License-Identifier: Apache-2.0
"""torch_rejoin_test.py ACCLAUNCH PACKAGE: workers that train with acclaunch.torch and are killed in a forward, a
backward, a step or a save are started again alone (--rejoin). Losses must equal those of an undisturbed run, bit for
bit. Exits with 77 without torch."""

import collections
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

if not importlib.util.find_spec("torch"):
    print("skipped: no torch")
    sys.exit(77)
if "RANK" in os.environ:
    import torch
    from torch import nn
    from torch.nn import functional as F

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

STEPS, WORDS, SIZE = 8, 13, 8
# (rank, steps made, place) of each kill, by the kind of the optimizer.
KILLS = {"runtime": [(1, 0, "forward"), (0, 2, "backward"), (0, 5, "step")],
         "torch": [(1, 1, "before the step"), (0, 3, "step"), (1, 6, "save")],
         "unsaved": [(1, 0, "forward")]}
# With nothing to go back to, the new rank and the one that is left end too, each as a restart.
RESTARTS = {"runtime": 3, "torch": 3, "unsaved": 3}
STRATEGIES = {"runtime": "FULL_SHARD", "torch": "SHARD_GRAD_OP", "unsaved": "FULL_SHARD"}


class Killer:
    """Kills this rank at each of its places once in the job."""

    def __init__(self, folder, rank, kills=()):
        self.folder, self.rank, self.kills, self.steps = folder, rank, kills, 0

    def at(self, place):
        marker = self.folder / f"killed {self.steps} {place}"
        if (self.rank, self.steps, place) in self.kills and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


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


def make_step(runtime, model, optimizer, killer, made):
    """Step number `made` from 0, whose loss is appended to a file of the rank."""
    killer.steps = made
    torch.manual_seed(100 * made + runtime.rank)
    loss = model(torch.randint(WORDS, (6,)))
    loss.backward()
    killer.at("before the step")
    optimizer.step()
    with open(killer.folder / f"losses of {runtime.rank}", "a") as out:
        print(made, loss.item().hex(), file=out)


def train_undisturbed(folder, kinds):
    import acclaunch.torch as acc

    for kind in kinds:
        os.environ["FSDP_SHARDING_STRATEGY"] = STRATEGIES[kind]
        runtime = acc.Runtime()
        killer = Killer(folder / kind, runtime.rank)
        model, optimizer = make(acc, runtime, killer, kind)
        for made in range(STEPS):
            make_step(runtime, model, optimizer, killer, made)
        runtime.barrier()


def train_with_kills(folder, kind):
    import acclaunch.torch as acc

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
                make_step(runtime, model, optimizer, killer, made)
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


def worker(folder, *kinds):
    folder = pathlib.Path(folder)
    train_with_kills(folder, *kinds) if len(kinds) == 1 else train_undisturbed(folder, kinds)


def losses(folder, rank):
    found = collections.defaultdict(set)
    for line in (folder / f"losses of {rank}").read_text().splitlines():
        step, loss = line.split()
        found[int(step)].add(loss)
    return dict(found)


def run(*words):
    """Runs two ranks, which import torch._dynamo for the optimizer or the device "meta". Returns their output."""
    acclaunch, package = sys.argv[1:]
    job = subprocess.run([acclaunch, "--cpu", "--num_processes", "2", "--preload", "torch._dynamo", "--use_fsdp",
                          *words],
                         env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable,
                                           "OMP_NUM_THREADS": "1"},
                         capture_output=True, text=True, timeout=1000)
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout + job.stderr


def check(folder, kind, expected):
    said = run("--fsdp_sharding_strategy", STRATEGIES[kind], "--max_restarts", str(RESTARTS[kind]),
               "--rejoin", "--memory_checkpoint_every", "1", "--shutdown_timeout", "900",
               os.path.abspath(__file__), folder, kind)
    if kind == "unsaved":
        assert "no whole state to go back to" in said, said
    else:
        count = len(KILLS[kind])
        assert said.count("started") == 2 + count, said  # survivors keep their processes
        assert said.count("all workers have rejoined") == count, said
    found = [losses(folder, rank) for rank in range(2)]
    assert found == expected, (kind, found, expected)


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        expected = {}  # by strategy
        kinds = ["runtime", "torch"]
        for kind in kinds:
            (folder / kind).mkdir()
        run(os.path.abspath(__file__), folder, *kinds)
        for kind in kinds:
            expected[STRATEGIES[kind]] = [losses(folder / kind, rank) for rank in range(2)]
        assert all(len(each) == STEPS for ranks in expected.values() for each in ranks), expected
        for kind in KILLS:
            (folder / f"killed {kind}").mkdir()
            check(folder / f"killed {kind}", kind, expected[STRATEGIES[kind]])


if __name__ == "__main__":
    worker(*sys.argv[1:]) if "RANK" in os.environ else main()
