# SPDX-License-Identifier: Apache-2.0
"""snapshots_test.py ACCLAUNCH SOURCE PACKAGE: programs that keep acclaunch.snapshots in the launcher's memory, whose
workers are killed before, in and after a snapshot. Losses must equal those of an undisturbed training, which the last
workers make without snapshots, bit for bit, on torch's engine and with --engine acc. Exits with 77 without torch and
Accelerate."""

import collections
import functools
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import warnings

if not all(map(importlib.util.find_spec, ("torch", "accelerate"))):
    print("skipped: no torch or no Accelerate")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from expect_error import expect  # noqa: E402

STEPS = 6
# (rank, step, place) of the kills: before the first snapshot, in one, and behind one.
KILLS = [(1, 1, "before"), (0, 4, "inside"), (1, 5, "after")]
SECTION = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "NO_WRAP"]
CASES = {"fsdp2": [], "fsdp2 acc": ["--engine", "acc"], "fsdp1 acc": ["--engine", "acc"],
         "accelerate acc": ["--engine", "acc", *SECTION], "fsdp1": []}


def install_kills(folder):
    from acclaunch import snapshots

    rank, last = int(os.environ["RANK"]), []

    def at(step, place):
        marker = pathlib.Path(folder) / f"killed {step} {place}"
        if (rank, step, place) in KILLS and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    keep, put = snapshots.Snapshots.keep, snapshots._Memory._put

    def killed_keep(self, step):
        at(step, "before")
        last[:] = [step]
        made = keep(self, step)
        at(step, "after")
        return made

    def killed_put(self, number, place):
        if place.complete:
            at(last[0] if last else 0, "inside")
        put(self, number, place)

    snapshots.Snapshots.keep, snapshots._Memory._put = killed_keep, killed_put


def train_with_accelerate():
    """With everything that Accelerate wraps, and a loader whose position the program finds by the step."""
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    from acclaunch.snapshots import Snapshots

    class Normed(torch.optim.Optimizer):
        """Its state is placed in another way than the parameters, as that of transformers' Adafactor."""

        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                mean, state = parameter.grad.square().mean(), self.state[parameter]
                state["mean"] = 0.9 * state["mean"] + 0.1 * mean if state else mean
                parameter.sub_(1e-2 * parameter.grad / state["mean"].sqrt())

    torch.manual_seed(3)
    accelerator = Accelerator()
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = Normed(model.parameters(), {"lr": 1e-2})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    # The generator: the beginning of an epoch draws a random number.
    loader = DataLoader(TensorDataset(torch.randn(4 * STEPS, 3)), batch_size=2, generator=torch.Generator())
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    torch.manual_seed(4 + accelerator.process_index)
    snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
    first = snapshots.resume()
    for step, (batch,) in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"rank {accelerator.process_index} step {step} loss {loss.item():.9g}", flush=True)
        snapshots.keep(step)


def train_with_fsdp1():
    """With an evaluation before each snapshot, which leaves parameters whole."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from acclaunch._library import NotSupportedError
    from acclaunch.snapshots import Snapshots

    torch.manual_seed(3)
    model = FullyShardedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)),
                                     sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rank = torch.distributed.get_rank()
    torch.manual_seed(4 + rank)
    snapshots = Snapshots(model=model, optimizer=optimizer)
    for step in range(snapshots.resume() + 1, STEPS + 1):
        loss = model(torch.randn(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.9g}", flush=True)
        if os.environ.get("ACC_ENGINE") != "acc":
            snapshots.keep(step)
        with torch.no_grad():
            model(torch.ones(1, 3))
        try:
            snapshots.keep(step)
        except NotSupportedError as error:
            print(f"refused: {error}", flush=True)


def worker(source, folder, case):
    import torch
    from leave import leave

    torch.set_num_threads(1)
    install_kills(folder)
    if case.startswith("accelerate"):
        train = train_with_accelerate
    else:
        torch.distributed.init_process_group("acc" if case.endswith("acc") else "gloo")
        if case.startswith("fsdp1"):
            train = train_with_fsdp1
        else:
            sys.path.append(f"{source}/examples/python")
            import train_snapshots

            train = functools.partial(train_snapshots.train, STEPS)
    train()
    os.environ["ACC_MEMORY_CHECKPOINT_EVERY"] = "0"
    print("undisturbed", flush=True)
    train()
    leave()


def check_with_kills(case):
    acclaunch, source, package = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.run([acclaunch, "--cpu", "--num_processes", "2", "--max_restarts", str(len(KILLS)),
                              "--restart_backoff", "0", "--memory_checkpoint_every", "2", "--preload",
                              "torch._dynamo,torch.distributed.fsdp", *CASES[case], os.path.abspath(__file__), source,
                              folder, case],
                             env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert job.returncode == 0, job.stdout
    disturbed, undisturbed = collections.defaultdict(set), {}
    left = set()  # ranks that have begun the undisturbed training
    for line in job.stdout.splitlines():
        prefix, is_line, said = line.partition("] ")
        if is_line and said == "undisturbed":
            left.add(prefix)
        elif is_line and said.startswith("rank "):
            key, _, loss = said.partition(" loss ")
            if prefix in left:
                undisturbed[key] = {loss}
            else:
                disturbed[key].add(loss)
    assert len(undisturbed) == 2 * STEPS and disturbed == undisturbed, (case, disturbed, undisturbed, job.stdout)
    assert ("refused: Snapshots.keep: the parameters of a FullyShardedDataParallel" in job.stdout) == (
        case == "fsdp1"), job.stdout
    before = job.stdout.partition("] rank ")[0]  # any step of the first start, which has nothing to resume from
    assert "snapshot in memory" not in before and "resuming" not in before, before
    # The snapshot of step 4 lacks rank 0, and is made once more.
    for said in ("no snapshot in memory of rank 0, 1 of 2", "resuming from step 2 in memory",
                 "resuming from step 4 in memory"):
        assert said in job.stdout, (said, job.stdout)


class Counter:
    """An object with a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def check_alone():
    """Snapshots of one process, in memory of its own: sizes that change, order, and mistakes."""
    import torch

    from acclaunch import snapshots
    from acclaunch._library import ConfigError, InvalidArgumentError, NotSupportedError
    from acclaunch.snapshots import Snapshots, _Memory

    file = os.memfd_create("snapshots")
    settings = {"ACC_MEMORY_CHECKPOINT_EVERY": "1", "ACC_SNAPSHOT_MEMORY": f"/proc/{os.getpid()}/fd/{file}"}
    os.environ |= settings

    counter = Counter(None)
    kept = Snapshots(counter=counter)
    assert kept.resume() == 0
    states = []
    for step, size in enumerate([5, 100_000, 3, 100_000, 7, 200_000, 0, 1], 1):
        counter.state = [torch.arange(size, dtype=dtype) for dtype in (torch.int8, torch.float64, torch.bfloat16)]
        counter.state += [torch.tensor(3.5), torch.ones(2, 3).t(), {"a": (1, "x", None, b"y")}]
        states.append(counter.state)
        assert kept.keep(step)
        for back in range(min(2, step)):  # the last two are whole
            packed, tensors = kept.memory.read((kept.history, step - back))
            assert len(tensors) >= 5 and kept.memory.steps() == {
                (kept.history, each) for each in range(max(1, step - 1), step + 1)}
            assert torch.equal(tensors[-2], torch.tensor(3.5)) and torch.equal(tensors[-1], torch.ones(3, 2)), packed
    assert os.fstat(file).st_size < 4 * 11 * 200_000, os.fstat(file).st_size
    counter.state = None
    other = Snapshots(counter=counter)
    assert other.resume() == 8 and counter.state[-1] == states[-1][-1] and torch.equal(counter.state[1], states[-1][1])
    # A snapshot that is damaged is not used, and one of a later step that others lack is dropped.
    place = next(each for each in other.memory._places() if each.step == 8)
    os.pwrite(file, bytes([255]), place.start + place.nbytes - 64)
    assert other.resume() == 7
    other.keep(8)
    other.memory.forget_after((kept.history, 7))
    assert other.resume() == 7
    # No rank replaces a snapshot if one has no memory for the next.
    steps, every = other.memory.steps(), snapshots.of_all_ranks
    snapshots.of_all_ranks = lambda why: [why, "no room"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert not other.keep(9) and other.memory.steps() == steps
    assert ["rank 1 has no memory for it: no room" in str(each.message) for each in said] == [True], said
    snapshots.of_all_ranks = every
    # One that is older than what the program has loaded from the disk is dropped.
    assert other.resume(7) == 7 and other.resume(8) == 8 and other.resume() == 0 and other.keep(7)
    # A step of a rank that was away is not that which the others have made again meanwhile.
    other.ranks = 2
    assert other.history > kept.history and other._whole([{(1, 4), (1, 5)}, {(1, 4), (2, 5)}]) == ((1, 4), {})
    other.ranks = 1
    counter.state = object()
    expect(InvalidArgumentError, "the state of counter cannot be kept", lambda: other.keep(9))
    counter.state = None
    expect(ConfigError, "the snapshot is of acc.random, counter, and the program names acc.random",
           Snapshots().resume)
    linear = torch.nn.Linear(2, 2)
    expect(InvalidArgumentError, "no optimizer", lambda: Snapshots(model=linear))
    expect(InvalidArgumentError, "loader is a list, which has no state_dict", lambda: Snapshots(loader=[]))
    engine = type("DeepSpeedEngine", (torch.nn.Linear,), {})(1, 1)
    expect(NotSupportedError, "of DeepSpeed", lambda: Snapshots(engine=engine))
    os.environ["WORLD_SIZE"] = "2"
    expect(InvalidArgumentError, "no process group yet", lambda: Snapshots(counter=counter))
    del os.environ["WORLD_SIZE"]
    optimizer = torch.optim.Adam(linear.parameters())
    Snapshots(model=linear, optimizer=optimizer).keep(9)
    expect(ConfigError, "the snapshot has weight as [2, 2] torch.float32, the module as [3, 2]",
           Snapshots(model=torch.nn.Linear(2, 3), optimizer=optimizer).resume)
    os.pwrite(file, b"another kind of snapshot", 0)
    expect(NotSupportedError, "acc.CheckpointSeries", lambda: Snapshots(counter=counter))
    # A history of another number of ranks is dropped when the next one begins.
    os.ftruncate(file, 0)
    memories = [_Memory(settings["ACC_SNAPSHOT_MEMORY"], 0, ranks) for ranks in (2, 3)]
    memories[0].write((1, 4), b"", [])
    assert memories[1].steps() == set() and memories[0].steps() == {(1, 4)}
    memories[1].forget_after((-1, -1))
    assert memories[0].steps() == set()
    os.close(file)
    for paths, why in (("", "the launcher has given none"), ("/nowhere", "No such file")):
        os.environ["ACC_SNAPSHOT_MEMORY"] = paths
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert not Snapshots(counter=counter).keep(1)
        assert len(said) == 1 and "rank 0 has no memory for them: " in str(said[0].message) and why in str(
            said[0].message), said
    for name in settings:
        del os.environ[name]
    assert not Snapshots(counter=counter).keep(1)


def main():
    sys.path.insert(0, sys.argv[3])
    check_alone()
    for case in CASES:
        check_with_kills(case)


if __name__ == "__main__":
    worker(*sys.argv[1:]) if "RANK" in os.environ else main()
