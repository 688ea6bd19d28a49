# SPDX-License-Identifier: Apache-2.0
"""engine_rejoin_test.py ACCLAUNCH PACKAGE [CASE]: programs under --engine acc whose workers are killed, and started
again alone (--rejoin). The other workers keep their processes. Losses must equal those of an undisturbed run, bit for
bit. Exits with 77 without torch and Accelerate."""

import collections
import datetime
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

if not all(map(importlib.util.find_spec, ("torch", "accelerate"))):
    print("skipped: no torch or no Accelerate")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from expect_error import expect  # noqa: E402

STEPS, WORDS, SIZE, SAMPLES = 8, 13, 8, 60
SECTION = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "NO_WRAP",
           "--fsdp_cpu_ram_efficient_loading", "false"]
# By program: flags, and (rank, steps made, place) of each kill. Before the third begin of its program the rank is
# awaited by the new process of the other one. "connect 4": in its fourth begin the rank has told Gloo's address to the
# others, and connects to none; which of two ranks waits for a connection is a matter of chance.
CASES = {
    "fsdp2": ([], [(1, 0, "forward"), (0, 2, "backward"), (1, None, "begin 3"), (1, None, "connect 4"),
                   (1, None, "connect 5"), (1, None, "connect 6"), (1, 3, "step"), (0, 4, "between"),
                   (1, 5, "snapshot")]),
    "accelerate": ([*SECTION, "--save_async"], [(1, 1, "forward"), (0, 3, "snapshot"), (1, 5, "metrics")]),
    "deepspeed": (["--save_async"], [(1, "1 of 3", "forward"), (0, "2 of 2", "backward"), (1, "3 of 1", "step"),
                                     (0, "4 of 3", "micro-step"), (1, 6, "snapshot")]),
    "accelerate, deepspeed": (["--use_deepspeed", "--zero_stage", "2", "--gradient_accumulation_steps", "2",
                               "--save_async"], [(1, 2, "forward"), (0, 4, "snapshot")]),
}
CASES["transformers, deepspeed"] = ([], [(0, "deepspeed 3", "backward"), (1, "fsdp 4", "save")])
CASES["transformers in memory, fsdp"] = ([], [(1, "fsdp 1", "forward"), (0, "fsdp 3", "save"),
                                              (1, "fsdp 4", "snapshot"), (0, "fsdp 6", "backward")])
CASES["transformers in memory, deepspeed"] = ([], [(1, "deepspeed 1", "forward"), (0, "deepspeed 3", "save"),
                                                   (1, "deepspeed 4", "snapshot"), (0, "deepspeed 6", "backward")])
CASES["transformers in memory, fsdp1"] = ([], [(1, "fsdp1 1", "forward"), (0, "fsdp1 4", "snapshot"),
                                               (1, "fsdp1 6", "backward")])
# Accelerate's own plugin of DeepSpeed needs transformers.
for package, words in (("deepspeed", ("deepspeed",)), ("transformers", ("transformers", "accelerate, deepspeed"))):
    if importlib.util.find_spec(package) is None:
        CASES = {name: case for name, case in CASES.items() if not any(each in name for each in words)}
# Sections of DeepSpeed engines that are trained in turn.
ADAM = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
ENGINES = [
    {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "optimizer": ADAM, "gradient_clipping": 1.0,
     "gradient_accumulation_steps": 2,
     "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": STEPS}}},
    # The scale overflows in some of the steps.
    {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
     "fp16": {"enabled": True, "initial_scale_power": 17, "loss_scale_window": 2, "hysteresis": 2}},
    {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}},
     "optimizer": ADAM},
]


class Killer:
    """Kills this rank at each of its places once in the job."""

    def __init__(self, folder, rank, kills):
        self.folder, self.rank, self.kills, self.steps = folder, rank, kills, None

    def at(self, place):
        marker = self.folder / f"killed {self.steps} {place} {self.rank}"
        if (self.rank, self.steps, place) in self.kills and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def note(folder, what, rank, line):
    with open(folder / f"{what} of {rank}", "a") as out:
        print(line, file=out)


def net_of(killer):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            killer.at("forward")
            x = F.dropout(F.gelu(self.linear(x)), 0.1, self.training)
            if x.requires_grad:
                x.register_hook(lambda _: killer.at("backward"))
            return x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.norm = nn.Embedding(WORDS, SIZE), nn.BatchNorm1d(SIZE)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.head = nn.Linear(SIZE, WORDS, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            x = self.norm(self.embedding(ids))
            for block in self.blocks:
                x = x + block(x)
            return F.cross_entropy(self.head(x), (ids + 1) % WORDS)

    torch.manual_seed(7)
    return Net(), torch.randint(WORDS, (SAMPLES,))


def watch_snapshots(killer):
    """Snapshots are killed in a snapshot, when it is not whole yet."""
    from acclaunch import snapshots

    class Killed(snapshots._Memory):
        def _put(self, number, place):
            if place.complete:
                killer.at("snapshot")
            super()._put(number, place)

    snapshots._Memory = Killed


def snapshots_of(killer, **objects):
    from acclaunch import snapshots

    watch_snapshots(killer)
    return snapshots.Snapshots(**objects)


def train_fsdp2(folder, killer):
    """A loop by hand, with an optimizer that torch fuses, a schedule, and a loader with a position."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from acclaunch.data import StatefulDataLoader

    dist.init_process_group()
    net, samples = net_of(killer)
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    optimizer.register_step_post_hook(lambda *_: killer.at("step"))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    # The generator: the beginning of an epoch draws a random number.
    loader = StatefulDataLoader(list(samples), global_batch_size=8, seed=3, generator=torch.Generator())
    torch.manual_seed(11 + dist.get_rank())
    snapshots = snapshots_of(killer, model=net, optimizer=optimizer, scheduler=scheduler, loader=loader)
    made = snapshots.resume()
    while made < STEPS:
        for batch in loader:
            killer.steps = made
            loss = net(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            note(folder, "losses", dist.get_rank(), f"{made} {loss.item().hex()} {mean.item().hex()}")
            killer.at("between")
            made += 1
            snapshots.keep(made)
            if made == STEPS:
                break
    dist.barrier()


def train_accelerate(folder, killer):
    """With all that Accelerate wraps, accumulated gradients, and metrics over the ranks."""
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(gradient_accumulation_steps=2)
    net, samples = net_of(killer)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = DataLoader(samples[:4 * STEPS], batch_size=1, shuffle=True, generator=torch.Generator())
    net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
    torch.manual_seed(11 + accelerator.process_index)
    snapshots = snapshots_of(killer, model=net, optimizer=optimizer, scheduler=scheduler)
    made = snapshots.resume()
    for batch in accelerator.skip_first_batches(loader, 2 * made):
        killer.steps = made
        with accelerator.accumulate(net):
            net.eval()
            loss = net(batch)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        killer.at("metrics")
        mean = accelerator.gather_for_metrics(loss.detach()).mean()
        note(folder, "losses", accelerator.process_index,
             f"{made}.{int(accelerator.sync_gradients)} {loss.item().hex()} {mean.item().hex()}")
        if accelerator.sync_gradients:
            made += 1
            snapshots.keep(made)
            accelerator.save_state(folder / f"state {made}")  # by ranks that have saved before, and new ones
    accelerator.wait_for_everyone()


def train_deepspeed(folder, killer):
    """Engines in each stage and precision, accumulated gradients, and every kind of schedule and optimizer."""
    import deepspeed
    import plain_muon  # noqa: F401
    import torch
    import torch.distributed as dist
    from deepspeed.ops.adam import FusedAdam

    from acclaunch._library import InvalidArgumentError

    deepspeed.utils.logger.setLevel("ERROR")
    engines, rank = [], int(os.environ["RANK"])
    for number, section in enumerate(ENGINES, 1):
        net, samples = net_of(killer)
        if number < 3:  # in 16 bits
            net.norm = torch.nn.LayerNorm(SIZE)
        own = FusedAdam(net.parameters(), lr=1e-2) if "optimizer" not in section else None
        scheduler = torch.optim.lr_scheduler.StepLR(own, 2) if own is not None else None
        engine, optimizer, _, scheduler = deepspeed.initialize(
            model=net, model_parameters=net.parameters(), optimizer=own, lr_scheduler=scheduler,
            config={"train_micro_batch_size_per_gpu": 4, **section})
        if number == 1:
            optimizer.optimizer.register_step_post_hook(lambda *_: killer.at("step"))
        engines.append(engine)
    snapshots = snapshots_of(killer, **{f"engine {number}": each for number, each in enumerate(engines, 1)},
                             optimizer=optimizer)
    expect(InvalidArgumentError, "name the engine", lambda: snapshots_of(killer, net=net, optimizer=optimizer))
    torch.manual_seed(11 + rank)
    made = snapshots.resume()
    while made < STEPS:
        for number, engine in enumerate(engines, 1):
            killer.steps = f"{made} of {number}"
            for micro in range(engine.gradient_accumulation_steps()):
                begin = 8 * (made % 6) + 4 * rank
                loss = engine(samples[begin:begin + 4])
                engine.backward(loss)
                expect(InvalidArgumentError, "has gradients", engine.state_in_memory)
                engine.step()
                killer.at("micro-step")
                note(folder, "losses", rank, f"{made}.{number}.{micro} {loss.item().hex()} {engine.get_lr()} "
                     f"{engine.optimizer.cur_scale} {engine.get_global_grad_norm()} {engine.global_steps}")
        made = killer.steps = made + 1
        snapshots.keep(made)
        engines[0].save_checkpoint(folder / "saved", f"state {made}")
    dist.barrier()


def trainer_of(folder, killer, section, repeated, **arguments):
    """A Trainer by ZeRO 3 or by FSDP 2, that of the section."""
    import torch
    import transformers

    rank = int(os.environ["RANK"])
    transformers.logging.set_verbosity_error()
    settings = {"deepspeed": {"deepspeed": {
        "zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}},
        **{each: {"fsdp": "full_shard", "fsdp_config": {"version": version, "cpu_ram_efficient_loading": False}}
           for each, version in (("fsdp", 2), ("fsdp1", 1))}}[section]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.samples = net_of(killer)
            self.net.head = torch.nn.Linear(SIZE, WORDS)

        def forward(self, input_ids, labels=None):
            return {"loss": self.net(input_ids.view(-1))}

    class Trainer(transformers.Trainer):
        micro = 0

        def training_step(self, *arguments, **keywords):
            killer.steps = f"{section} {self.state.global_step}"
            loss = super().training_step(*arguments, **keywords)
            note(folder, "losses", rank, f"{section}.{self.state.global_step}.{self.micro} {loss.item().hex()} "
                 f"{self._get_learning_rate()}")
            self.micro = 1 - self.micro
            return loss

        def _save_rng_state(self, *arguments):
            killer.steps = f"{section} {self.state.global_step}"
            killer.at("save")
            super()._save_rng_state(*arguments)

    model = Model()
    samples = [{"input_ids": each.view(1), "labels": each.view(1)} for each in model.samples.repeat(repeated)]
    return Trainer(model=model, train_dataset=samples, eval_dataset=samples[:4], args=transformers.TrainingArguments(
        folder / section, use_cpu=True, max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        logging_steps=3, report_to="none", disable_tqdm=True, lr_scheduler_type="cosine", learning_rate=1e-2,
        **arguments, **settings))


def train_transformers(folder, killer):
    """With Trainer's own checkpoints, of which it keeps one: by ZeRO 3, written beside the training, then by FSDP 2."""
    import torch
    from accelerate.state import AcceleratorState, GradientState
    from transformers.trainer_utils import get_last_checkpoint

    from acclaunch._library import CollectiveError, ConfigError

    rank = int(os.environ["RANK"])
    for section in ("deepspeed", "fsdp"):
        os.environ["ACC_SAVE_ASYNC"] = str(section == "deepspeed").lower()
        out = folder / section
        out.mkdir(exist_ok=True)
        trainer = trainer_of(folder, killer, section, 2, save_steps=2, save_total_limit=1)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(out))
        last = out / f"checkpoint-{STEPS}"
        assert list(out.iterdir()) == [last], list(out.iterdir())
        (last / ".acc-unfinished").touch()
        expect(ConfigError, "not a complete checkpoint", lambda: trainer.train(resume_from_checkpoint=str(last)))
        assert get_last_checkpoint(out) is None
        (out / "checkpoint-99").touch()  # rank 0 cannot make the folder, and the other one learns of it
        trainer.state.global_step = 99
        error, text = [(FileExistsError, "checkpoint-99"), (CollectiveError, "was not saved: rank 0: ")][rank]
        expect(error, text, lambda: trainer._save_checkpoint(trainer.model_wrapped, None))
        torch.distributed.barrier()
        (out / "checkpoint-99").unlink(missing_ok=True)
        (last / ".acc-unfinished").unlink(missing_ok=True)
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)


def train_in_memory(folder, killer, section):
    """By Trainer with the setting memory_checkpoint_every, in more than one epoch: with all that it has logged, and the
    counter of a callback."""
    import transformers
    from transformers.trainer_utils import get_last_checkpoint

    watch_snapshots(killer)
    (folder / section).mkdir(exist_ok=True)
    # A sampler that draws from the random numbers of the process, and one that knows its order by the epoch.
    sampling = "group_by_length" if section == "deepspeed" else "random"
    trainer = trainer_of(folder, killer, section, 1, save_steps=3, eval_strategy="steps", eval_steps=2,
                         metric_for_best_model="loss", train_sampling_strategy=sampling)
    stop = transformers.EarlyStoppingCallback(STEPS)
    trainer.add_callback(stop)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder / section))
    logged = [{key: value for key, value in each.items() if "runtime" not in key and "per_second" not in key}
              for each in trainer.state.log_history]
    note(folder, "losses", int(os.environ["RANK"]), f"end {stop.early_stopping_patience_counter} {logged}")


def give_address(killer, place):
    """Is killed when torch has given the address of this rank's Gloo to the store."""
    from acclaunch import _rejoin

    def put(self, key, value):
        self.store.set(key, value)
        if key.endswith(f"/{killer.rank}"):
            killer.at(place)

    _rejoin._EpochStore.set = put


def worker(folder, case, disturbed):
    import torch

    torch.set_num_threads(1)
    folder, rank = pathlib.Path(folder), int(os.environ["RANK"])
    killer = Killer(folder, rank, CASES[case][1] if disturbed else [])
    note(folder, "pids", rank, os.getpid())
    begun = len((folder / f"pids of {rank}").read_text().split())
    killer.at(f"begin {begun}")
    if disturbed:
        give_address(killer, f"connect {begun}")
    name, _, section = case.partition(", ")
    if name == "transformers in memory":
        return train_in_memory(folder, killer, section)
    {"fsdp2": train_fsdp2, "deepspeed": train_deepspeed, "accelerate": train_accelerate,
     "transformers": train_transformers}[name](folder, killer)


def losses(folder, rank):
    found = collections.defaultdict(set)
    for line in (folder / f"losses of {rank}").read_text().splitlines():
        step, loss = line.split(maxsplit=1)
        found[step].add(loss)
    return dict(found)


def run(folder, case, *flags, disturbed=""):
    """Runs two ranks in a new folder. Returns it, and their output."""
    acclaunch, package = sys.argv[1:3]
    folder.mkdir()
    modules = ",".join(["torch._dynamo", *["deepspeed"] * ("deepspeed" in case)])
    job = subprocess.run([acclaunch, "--engine", "acc", "--cpu", "--num_processes", "2", "--preload", modules,
                          *CASES[case][0], *flags, os.path.abspath(__file__), folder, case, disturbed],
                         env=os.environ | {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable,
                                           "OMP_NUM_THREADS": "1"},
                         capture_output=True, text=True, timeout=1000)
    assert job.returncode == 0, job.stdout + job.stderr
    return folder, job.stdout + job.stderr


def check(folder, case):
    kills = CASES[case][1]
    expected, _ = run(folder / f"{case} undisturbed", case)
    found, said = run(folder / f"{case} disturbed", case, "--rejoin", "--max_restarts", str(len(kills)),
                      "--memory_checkpoint_every", "0" if case.startswith("transformers,") else "1",
                      "--shutdown_timeout", "900", disturbed="1")
    for rank in range(2):
        # Each process of a rank but the last was killed, and every other time the program began again in it.
        pids = (found / f"pids of {rank}").read_text().split()
        assert len(set(pids)) == 1 + sum(killed == rank for killed, _, _ in kills), (case, rank, pids, said)
        assert losses(found, rank) == losses(expected, rank), (case, rank, losses(found, rank), losses(expected, rank))
    assert "starting all" not in said, said
    assert case == "fsdp2" or any(found.glob(f"**/*[ -]{STEPS}")), said
    print(case, *[line for line in said.splitlines() if "in memory" in line], sep="\n", flush=True)


def check_lost_store(package):
    """A rank that connects to the store of a machine that is lost learns of it, before torch gives up."""
    sys.path.insert(0, package)
    import torch

    from acclaunch import _rejoin
    from acclaunch._library import PeerLostError

    states = [_rejoin._GOES_ON, _rejoin._LOST]  # at each attempt
    membership = _rejoin._Membership.__new__(_rejoin._Membership)
    membership._state = lambda _: states.pop(0)
    membership.connections = _rejoin._Connections()
    _rejoin._meet_in_epoch(membership)
    closed = 1  # a port
    create = sys.modules[f"{torch.distributed.__name__}.rendezvous"]._create_c10d_store
    expect(PeerLostError, "lost a rank", lambda: create("127.0.0.1", closed, 1, 2, datetime.timedelta(minutes=30)))


def main():
    check_lost_store(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        for case in sys.argv[3:] or CASES:
            check(pathlib.Path(folder), case)


if __name__ == "__main__":
    worker(*sys.argv[1:]) if "RANK" in os.environ else main()
