# SPDX-License-Identifier: Apache-2.0
"""engine_deepspeed_test.py ACCLAUNCH PACKAGE FILE_FAULTS WITHOUT_SYSCALLS: trains modules with DeepSpeed's engine and
with the one of the engine acc, in the same processes, by the same functions. Losses, norms, weights and checkpoints
must be equal. FILE_FAULTS and WITHOUT_SYSCALLS are the library and the program of test/support. Exits with 77 without
DeepSpeed."""

import contextlib
import functools
import importlib.util
import io
import itertools
import os
import pathlib
import shutil
import sys
import tempfile
import types
from unittest import mock

if not all(map(importlib.util.find_spec, ("torch", "deepspeed"))):
    print("skipped: no DeepSpeed")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from run_ranks import run_ranks  # noqa: E402

WORDS, SIZE = 13, 6

if "RANK" in os.environ:
    import deepspeed
    import plain_muon  # noqa: F401
    import torch
    import torch.distributed as dist
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from leave import leave
    from torch import nn
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.nn import functional as F
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from acclaunch import _deepspeed, _fsdp2, _nvme, _rows
    from acclaunch._library import ConfigError

    THEIRS, OURS = deepspeed.DeepSpeedEngine, _deepspeed.Engine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles C++ code
    THEIRS._broadcast_model = lambda _: None  # fails for a scalar; the ranks' values are equal here
    deepspeed.utils.logger.setLevel("ERROR")

    class Block(nn.Module):
        """A parameter that only some inputs use, rows that are no multiple of the ranks, and perhaps a scalar."""

        def __init__(self, scalar):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 13), nn.Linear(13, SIZE)
            self.rare = nn.Parameter(torch.ones(3, SIZE))
            self.gain = nn.Parameter(torch.full(() if scalar else (1,), 0.9))

        def forward(self, x, rare=False):
            y = self.down(F.gelu(self.up(self.norm(x)))) * self.gain
            return x + y + (self.rare.sum(0) if rare else 0)

    class Net(nn.Module):
        def __init__(self, scalar=True):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, SIZE)
            self.blocks = nn.ModuleList(Block(scalar) for _ in range(3))
            self.frozen = nn.Linear(SIZE, SIZE)
            self.norm = nn.LayerNorm(SIZE)
            self.head = nn.Linear(SIZE, WORDS, bias=False)
            self.head.weight = self.embedding.weight
            self.frozen.requires_grad_(False)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, ids, rare=False):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x, rare)
            self.seen += 1
            return self.head(self.norm(x + self.frozen(x)))


class Trial:
    """One training with one engine. arguments: of deepspeed.initialize; scalar: by default in the stages in which
    DeepSpeed can clip and share one; config: further settings."""

    def __init__(self, engine, stage, arguments=lambda net: {"model_parameters": net.parameters()}, scalar=None,
                 **config):
        torch.manual_seed(7)
        self.net = Net(stage in (1, 2) if scalar is None else scalar)
        self.generator = torch.Generator().manual_seed(3 + dist.get_rank())
        self.found = []
        self.settings = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
                         "gradient_clipping": 0.5, "zero_allow_untested_optimizer": True,
                         "zero_optimization": {"stage": stage}, **config}
        # Small buckets: DeepSpeed reserves 4 GB for those of its defaults in each engine, and engines stay alive. The
        # kernel counts all of it when a loader forks.
        self.settings["zero_optimization"] = {"reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000,
                                              **self.settings["zero_optimization"]}
        self.start(engine, arguments)

    def start(self, engine, arguments):
        deepspeed.DeepSpeedEngine = engine
        self.engine, self.optimizer, _, self.schedule = deepspeed.initialize(
            model=self.net, config=self.settings, **arguments(self.net))

    def note(self, *values):
        self.found += [float(value) for value in values if value is not None]

    def loss(self, **keywords):
        ids = torch.randint(WORDS, (2, 5), generator=self.generator)
        return F.cross_entropy(self.engine(ids, **keywords).flatten(0, 1).float(), ids.flatten())

    def train(self, micro_steps=6, rare_from=3):
        """DeepSpeed's stage 3 takes the last gradient of a parameter again when the parameter is not used any more."""
        for number in range(micro_steps):
            loss = self.loss(rare=number >= rare_from)
            self.note(self.engine.backward(loss))
            self.engine.step()
            self.note(loss, self.engine.global_steps, self.engine.skipped_steps, *self.engine.get_lr())
            if self.engine.zero_optimization() and self.engine.was_step_applied():
                self.note(self.engine.get_global_grad_norm())
        with torch.no_grad():
            self.engine.eval()
            self.note(self.loss())
            self.engine.train()


ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 4}}}
BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 17, "loss_scale_window": 2, "hysteresis": 1},
        "communication_data_type": "fp32", "gradient_accumulation_steps": 1}

TRAVELS = ((0, ADAM), (1, ADAM), (2, ADAM | BF16), (3, ADAM))  # stages, in which checkpoints are exchanged


def grouped(net):
    """An optimizer and a schedule of the program, made before."""
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [each for each in trained if each.dim() > 1], "weight_decay": 0.3},
                                   {"params": [each for each in trained if each.dim() == 1], "lr": 2e-2}], lr=1e-2)
    return {"optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))}


def of_part(net):
    """An optimizer that does not have all trained parameters."""
    return {"optimizer": torch.optim.Adam(net.blocks.parameters(), lr=1e-2)}


def compiled_part(net):
    net.norm = torch.compile(net.norm, backend="eager")
    return {"model_parameters": net.parameters()}


def called(net):
    return {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            "model_parameters": [each for each in net.parameters() if each.requires_grad]}


# ---- cases: functions of a Trial ------------------------------------------------------------------

def plain(trial):
    trial.train()


def overflows(trial):
    """One of the losses is infinite on one rank."""
    for number in range(6):
        loss = trial.loss()
        trial.engine.backward(loss * (float("inf") if number == 2 and dist.get_rank() == 0 else 1.0))
        trial.engine.step()
        trial.note(loss, trial.engine.skipped_steps)


def boundaries(trial):
    """The program decides when a step is due, and scales the loss itself."""
    for last in (False, False, True, True):
        trial.engine.set_gradient_accumulation_boundary(last)
        loss = trial.loss()
        trial.engine.backward(loss / 3, scale_wrt_gas=False)
        if last:
            trial.engine.step()
        trial.note(loss)


def dropped(trial):
    """The program drops the gradients of the first micro-step of each step, in all ways; some do not reach them."""
    trial.note(trial.loss())
    ways = [each.zero_grad for each in (trial.engine, trial.engine.optimizer, trial.engine.module,
                                        trial.engine.basic_optimizer)]
    if trial.engine.zero_optimization_stage() > 1 or trial.engine._config.grad_accum_dtype:
        around = nn.ModuleList([trial.net, nn.Linear(1, 1)])
        ways += [trial.net.blocks[1].zero_grad, functools.partial(around.zero_grad, set_to_none=False)]
    for number, way in enumerate(ways):
        trial.engine.backward(trial.loss(rare=True))
        way()
        trial.engine.step()
        trial.engine.backward(trial.loss(rare=True))
        trial.engine.step()
        trial.note(*(value.sum() for value in weights(trial).values()), number)


def from_beginning(trial):
    """A trained engine loads a checkpoint from before the first step, in stages 1 and 2 with its limit of norms."""
    with tempfile.TemporaryDirectory() as own:
        paths = [own]
        dist.broadcast_object_list(paths)
        trial.engine.save_checkpoint(paths[0])
        trial.train(2)
        trial.engine.optimizer.clip_grad /= 10
        trial.engine.load_checkpoint(paths[0])
        trial.note(trial.engine.optimizer.clip_grad)
        trial.train(4)
        dist.barrier()


def converted(trial):
    """Conversions of the module's parameters to what they are, which change none, also while something refers to
    them."""
    kept = [each.detach() for each in trial.net.parameters()]
    for _ in range(4):
        trial.net.to("cpu")
        loss = trial.loss()
        trial.engine.backward(loss)
        before = weights(trial)
        trial.net.cpu()
        if trial.engine.zero_optimization_stage() != 1:
            trial.net.float()
        assert all(torch.equal(value, before[name]) for name, value in weights(trial).items())
        trial.engine.step()
        trial.note(loss, len(kept))


def unmanaged(trial):
    """Each step is one of all backwards since the last one."""
    for number in range(6):
        loss = trial.loss()
        trial.engine.backward(loss, scale_wrt_gas=False)
        if number in (0, 3, 5):
            trial.engine.step()
        trial.note(loss, trial.engine.global_steps)


def of_gradients(trial):
    """The trained parameters, and the functions to get and set their gradients: DeepSpeed's, which are in use, or
    ours."""
    functions = dict(_deepspeed._safe_functions()) if isinstance(trial.engine, OURS) else vars(deepspeed.utils)
    return ([each for each in trial.engine.module.parameters() if each.requires_grad],
            functions["safe_get_full_grad"], functions["safe_set_full_grad"])


def unreached(trial):
    """The program adds to the gradients of all parameters, also of those that no backward has reached."""
    trained, get, put = of_gradients(trial)
    for _ in range(4):
        trial.engine.backward(trial.loss())
        if trial.engine.is_gradient_accumulation_boundary():
            for each in trained:
                gradient = get(each)
                if gradient.numel() % dist.get_world_size() == 0:  # DeepSpeed's stage 3 fails to put the others
                    put(each, gradient + 0.01)
        trial.engine.step()
    trial.note(trial.loss(rare=True))


def without_sync(trial):
    """In stage 0 the program reads a rank's own gradients, and changes one."""
    trained, get, put = of_gradients(trial)
    for number in range(6):
        trial.engine.set_gradient_accumulation_boundary(number % 2 == 1)
        with trial.engine.no_sync() if number % 2 == 0 else contextlib.nullcontext():
            loss = trial.loss()
            trial.engine.backward(loss)
        if number % 2 == 0 and trial.engine.zero_optimization_stage() == 0:
            gradients = [get(each) for each in trained]
            trial.note(*(0 if each is None else each.detach().abs().sum() for each in gradients))
            put(trained[0], torch.ones_like(gradients[0]))
        if number % 2:
            trial.engine.step()
        trial.note(loss)


def loaded(trial):
    """DeepSpeed's data loader, which the engine made."""
    for ids, in trial.engine.training_dataloader:
        loss = F.cross_entropy(trial.engine(ids).flatten(0, 1), ids.flatten())
        trial.engine.backward(loss)
        trial.engine.step()
        trial.note(loss, trial.engine.global_samples)


def with_data(net):
    return {"model_parameters": net.parameters(), "training_data": torch.utils.data.TensorDataset(
        torch.arange(90).view(18, 5) % WORDS)}


def by_one(trial):
    """Whole values of one rank, which the others do not wait for: before the first step and after others, a checkpoint,
    a forward."""
    if dist.get_rank() == 0:
        trial.net.state_dict()
    for number in range(4):
        loss = trial.loss()
        trial.engine.backward(loss)
        trial.engine.step()
        trial.note(loss)
        if number % 2 == dist.get_rank():
            whole = trial.net.state_dict()
            trial.note(*(value.float().square().sum() for value in whole.values()))
            trial.note(*(value.float().sum() for value in trial.net.blocks[0].state_dict().values()))
            trial.note(*(each.detach().cpu().float().sum() + each.data.cpu().float().norm()
                         for each in trial.net.parameters()))
            if trial.engine.zero_optimization_stage() == 0:
                with torch.no_grad():
                    trial.note(trial.loss())
        else:
            trial.note(*[0.0] * (len(trial.net.state_dict(keep_vars=True)) + len(trial.net.blocks[0].state_dict(
                keep_vars=True)) + len([*trial.net.parameters()])))
    trial.note(trial.loss())
    before = [each.detach().cpu() for each in trial.net.parameters()]
    for each, value in zip(trial.net.parameters(), before):
        each.data = value * 2  # on all ranks
    assert all(torch.equal(each.detach().cpu(), value * 2) for each, value in zip(trial.net.parameters(), before))


def again(trial):
    """A second engine with the same module and an optimizer of its own, in the middle of an accumulation."""
    trial.train(3)
    trial.start(type(trial.engine), lambda net: {"model_parameters": net.parameters()})
    trial.train(4, rare_from=0)


def again_dropped(trial):
    """The second engine drops what the first one has accumulated."""
    trial.train(3)
    trial.start(type(trial.engine), lambda net: {"model_parameters": net.parameters()})
    trial.engine.zero_grad()
    trial.train(4, rare_from=0)


def by_parts(trial):
    """The program calls the module's parts, some of which are units, in place of the module: a forward as that of an
    encoder by generate(), and a training. DeepSpeed's stage 3 adds micro-steps only if the engine is called."""
    for number in range(5):
        net, ids = trial.engine.module, torch.randint(WORDS, (2, 5), generator=trial.generator)
        with torch.set_grad_enabled(number > 0):
            x = net.blocks[0](net.blocks[1](net.embedding(ids)), rare=True)
            loss = F.cross_entropy(net.head(net.norm(net.frozen(x))).flatten(0, 1).float(), ids.flatten())
        trial.note(loss)
        if number > 0:
            trial.engine.backward(loss)
            trial.engine.step()
    trial.train(2, rare_from=0)


def direct(trial):
    """Backwards of the loss itself, as in a program for DDP."""
    for _ in range(4):
        loss = trial.loss()
        loss.backward()
        trial.engine.step()
        trial.note(loss, trial.engine.global_steps, trial.engine.get_global_grad_norm())


def penalised(trial):
    """A penalty on the weights with a factor of each rank. DeepSpeed's stage 3 has no whole parameters for it."""
    for _ in range(4):
        loss = trial.loss(rare=True) + 0.02 * (1 + dist.get_rank()) * sum(
            each.pow(2).sum() + torch.linalg.norm(each) for each in trial.net.parameters() if each.requires_grad)
        trial.engine.backward(loss)
        trial.engine.step()
        trial.note(loss, trial.engine.get_global_grad_norm())


def with_list(net):
    net.kept = [each for each in net.parameters() if each.requires_grad]
    return {"model_parameters": net.parameters()}


def kept(trial):
    """A list of parameters from before: averages, and a penalty."""
    averages = [each.detach().clone() for each in trial.net.kept]
    for _ in range(4):
        loss = trial.loss(rare=True) + 0.02 * sum(each.pow(2).sum() for each in trial.net.kept)
        trial.engine.backward(loss)
        trial.engine.step()
        for average, each in zip(averages, trial.net.kept):
            average.lerp_(each.detach(), 0.3)
        trial.note(loss, *(each.sum() for each in averages))


def compiled(trial):
    trial.engine.compile(backend="eager")
    trial.train()


CASES = ([("fp32", stage, plain, {**ADAM}, None, 1e-5) for stage in range(4)]
         + [("bf16", stage, plain, {**ADAM, **BF16}, None, 1e-2) for stage in range(4)]
         + [("fp16", 2, plain, {**ADAM, **FP16}, None, 1e-2),
            ("fp16", 3, plain, {**ADAM, "fp16": {"enabled": True, "loss_scale": 128}}, None, 1e-2)]
         + [("groups", stage, plain, {}, grouped, 1e-5) for stage in (0, 1, 3)]
         + [("part", stage, plain, {}, of_part, 1e-5) for stage in (0, 1)]
         + [("callable", 2, plain, {}, called, 1e-5), ("boundaries", 2, boundaries, ADAM, None, 1e-5),
            ("no_sync", 0, without_sync, ADAM, None, 1e-5), ("no_sync", 1, without_sync, ADAM, None, 1e-5),
            *(("unreached", stage, unreached, ADAM, None, 1e-5) for stage in range(4)),
            ("by one", 0, by_one, ADAM, None, 1e-5), ("by one", 1, by_one, ADAM, None, 1e-5),
            ("by one", 2, by_one, {**ADAM, **BF16}, None, 1e-2), ("by parts", 0, by_parts, ADAM, None, 1e-5),
            ("by parts", 2, by_parts, {**ADAM, **BF16}, None, 1e-2),
            ("by parts", 3, by_parts, {**ADAM, "gradient_accumulation_steps": 1}, None, 1e-5),
            ("compiled", 1, compiled, ADAM, None, 1e-5), ("compiled", 3, compiled, {**ADAM, **BF16}, None, 1e-2),
            ("direct", 3, direct, ADAM, None, 1e-5), ("penalised", 1, penalised, ADAM, None, 1e-5),
            ("penalised", 2, penalised, ADAM, None, 1e-5), ("kept", 2, kept, ADAM, with_list, 1e-5),
            ("penalised", 1, penalised, {**ADAM, "gradient_allreduce_op": "sum"}, None, 1e-5),
            ("again", 0, again, ADAM, None, 1e-5), ("again", 2, again, {**ADAM, **BF16}, None, 1e-2),
            ("again", 1, again, ADAM, None, 1e-5), ("again", 3, again, ADAM, None, 1e-5),
            ("again dropped", 0, again_dropped, ADAM, None, 1e-5),
            ("again dropped", 1, again_dropped, ADAM, None, 1e-5),
            *(("dropped", stage, dropped, {}, grouped, 1e-5) for stage in (0, 1, 2, 3)),
            ("dropped", 1, dropped, {**BF16, "data_types": {"grad_accum_dtype": "fp32"}}, grouped, 1e-2),
            *(("converted", stage, converted, ADAM | more, None, tolerance) for stage, more, tolerance in (
                (0, {}, 1e-5), (1, BF16, 1e-2), (2, {}, 1e-5), (3, {}, 1e-5))),
            ("from the beginning", 1, from_beginning, ADAM, None, 1e-5),
            ("from the beginning", 3, from_beginning, ADAM, None, 1e-5), ("data", 2, loaded, ADAM, with_data, 1e-5),
            ("unmanaged", 1, unmanaged, {**ADAM, "managed_gradient_accumulation": False}, None, 1e-5),
            ("sum", 1, plain, {**ADAM, "gradient_allreduce_op": "sum"}, None, 1e-5),
            ("no norm", 2, plain, {**ADAM, "gradient_clipping": 0.0,
                                   "zero_optimization": {"stage": 2, "compute_grad_norm": False}}, None, 1e-5),
            *(("overflow", stage, overflows, {**ADAM, "bf16": {"enabled": True, "check_grad_overflow": False}}, None,
               1e-2) for stage in (0, 3))])


def weights(trial):
    """All weights, by name, in one array of each rank."""
    return {name: _deepspeed._whole_of(value).float() for name, value in trial.engine.module.named_parameters()}


def contents(trial):
    """Weights and moments, whole. Collective."""
    states = trial.optimizer.state
    return weights(trial) | {f"{key} of {name}": _deepspeed._whole_of(torch.as_tensor(value)).float()
                             for name, parameter in trial.engine.module.named_parameters() if parameter in states
                             for key, value in states[parameter].items()}


def keep(trial, path):
    whole = contents(trial)
    if dist.get_rank() == 0:
        torch.save(whole, path)


# Rules that are here in place of DeepSpeed's, with their stages.
OF_RULES = ((1, "Muon", {"lr": 1e-2, "weight_decay": 0.1}), (2, "Lamb", {"lr": 1e-2, "weight_decay": 0.1}),
            (3, "Muon", {"muon_lr": 2e-2, "adam_lr": 1e-2}))


def of_rule(stage, kind, values):
    return Trial(OURS, stage, scalar=False, optimizer={"type": kind, "params": values})


def save_rules(folder):
    for stage, kind, values in OF_RULES:
        trial, path = of_rule(stage, kind, values), f"{folder}/{kind}{stage}"
        trial.train(4, rare_from=0)
        trial.engine.save_checkpoint(path)
        keep(trial, f"{path}/reference")


def load_rules(folder):
    for stage, kind, values in OF_RULES:
        trial, path = of_rule(stage, kind, values), f"{folder}/{kind}{stage}"
        trial.engine.load_checkpoint(path)
        expected, found = torch.load(f"{path}/reference"), contents(trial)
        assert len(found) > 40 and sorted(found) == sorted(expected), (kind, sorted(found), sorted(expected))
        assert all(torch.equal(found[name], value) for name, value in expected.items()), (kind, stage)
        trial.train(2, rare_from=0)


# Stage, settings and engine that save what ds_to_universal converts.
UNIVERSAL = ((1, ADAM, "theirs"), (2, ADAM | BF16, "ours"), (3, ADAM, "ours"))


def save_universal(folder):
    for stage, config, engine in UNIVERSAL:
        trial = Trial({"theirs": THEIRS, "ours": OURS}[engine], stage, scalar=False, **config)
        path = f"{folder}/universal/{stage}{engine}"
        trial.train(4, rare_from=0)
        trial.engine.save_checkpoint(path)
        if dist.get_rank() == 0:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                ds_to_universal.main(types.SimpleNamespace(
                    input_folder=f"{path}/global_step2", output_folder=f"{path}/converted", num_extract_workers=1,
                    num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True))
        if engine == "theirs":
            trial = Trial(OURS, stage, scalar=False, **config)
            trial.engine.load_checkpoint(path)
        keep(trial, f"{path}/reference")


def load_universal(folder):
    """DeepSpeed's universal checkpoints, by both engines, and by ours in another stage."""
    universal = {"checkpoint": {"load_universal": True}}
    for stage, config, engine in UNIVERSAL:
        path = f"{folder}/universal/{stage}{engine}"
        trials = [Trial(kind, number, scalar=False, **config, **universal)
                  for kind, number in ((THEIRS, stage), (OURS, stage), (OURS, 3 - stage))]
        expected = torch.load(f"{path}/reference")
        for trial in trials:
            trial.engine.load_checkpoint(path)
            if trial is not trials[0]:
                found = contents(trial)
                assert len(found) > 40 and found.keys() == expected.keys(), (stage, sorted(found), sorted(expected))
                assert all(torch.equal(found[name], value) for name, value in expected.items()), (stage, engine)
            trial.train(4, rare_from=0)
        expect_equal(("universal", stage, engine), trials[1].found, trials[0].found, 1e-2 if "bf16" in config else 1e-5)
        if dist.get_rank() == 0:  # all have read it: the last train() has collectives
            os.remove(f"{path}/converted/zero/norm.weight/exp_avg.pt")
        dist.barrier()
        words = "has no file exp_avg.pt" if stage == 3 else "has the states ['exp_avg_sq', 'step'] of 'norm.weight'"
        expect_refusal(lambda: trials[1].engine.load_checkpoint(path), words)  # noqa: B023
    expect_refusal(lambda: trials[1].engine.load_checkpoint(path, "global_step2"), "is no universal checkpoint")


def elsewhere(folder):
    """What two ranks have saved, this number of ranks loads."""
    only = os.environ.get("ONLY", "")
    if only in "universal":
        load_universal(folder)
    if only not in "rules":
        return
    load_rules(folder)
    for stage, config in TRAVELS[1:]:
        for number, options in ((1, config), (2, config), ("nvme", config), ("nvme", on_disk(folder, stage, config))):
            trial, path = Trial(OURS, stage, **options), f"{folder}/{stage}/{number}"
            trial.engine.load_checkpoint(path, tag="global_step2")
            expected, found = torch.load(f"{path}/reference"), contents(trial)
            assert len(found) > 20 and sorted(found) == sorted(expected), (sorted(found), sorted(expected))
            for name, value in expected.items():
                assert torch.equal(found[name], value), (stage, number, name)
            assert trial.engine.global_steps == 2
            trial.train(2)


def alike():
    """What DeepSpeed lacks: in stages 0 and 3 scalars train as arrays of one element do, and penalties on weights as in
    stage 1; in stage 3 a part that torch.compile has wrapped."""
    trials = [Trial(OURS, 3, *arguments, **ADAM) for arguments in ((), (compiled_part,))]
    for trial in trials:
        plain(trial)
    expect_equal("compiled part", trials[0].found, trials[1].found, 1e-6)
    for stage in (0, 3):
        for case, kinds in ((plain, ((stage, False), (stage, True))), (penalised, ((1, False), (stage, False)))):
            trials = [Trial(OURS, number, scalar=scalar, **ADAM) for number, scalar in kinds]
            for trial in trials:
                case(trial)
            expect_equal(("alike", stage, case.__name__), trials[0].found, trials[1].found, 1e-6)


def gathered():
    """zero.Init and zero.GatheredParameters, and whole state dicts in stage 2."""
    torch.manual_seed(dist.get_rank())
    _deepspeed.serve_status()
    with _deepspeed.Init(config_dict_or_path={}):
        net = Net()
    order = 1 - 2 * dist.get_rank()  # as of sets, which transformers gives
    with _deepspeed.GatheredParameters(list(net.parameters())[::order], modifier_rank=1):
        if dist.get_rank() == 1:
            nn.init.constant_(net.norm.weight, 3.0)
    assert net.norm.weight.sum() == 3 * SIZE
    if dist.get_rank() == 0:  # nothing to gather, so that no other rank is needed
        with _deepspeed.GatheredParameters(nn.Linear(2, 2).parameters(), modifier_rank=0):
            pass
    for stage in (2, 3):
        trial = Trial(OURS, stage, **ADAM)
        trial.train(2)
        before = weights(trial)
        block = trial.engine.module.blocks[1]
        weight = block.up.weight  # the program may hold the object
        with _deepspeed.GatheredParameters(list(block.parameters())[::order], modifier_rank=0):
            assert torch.equal(block.up.weight, before["blocks.1.up.weight"])
            if dist.get_rank() == 0:
                weight.data.fill_(0.5)
        after = weights(trial)
        for name in before:
            changed = torch.full((13, SIZE), 0.5) if name == "blocks.1.up.weight" else before[name]
            assert torch.equal(after[name], changed), name
        ids = torch.arange(10).view(2, 5)
        with torch.no_grad():
            expected = trial.engine(ids)
            with _deepspeed.GatheredParameters(trial.engine.module.parameters()):
                torch.testing.assert_close(trial.engine.module(ids), expected)
                assert weight.ds_status.name == "AVAILABLE"
        assert weight.ds_status.name == "NOT_AVAILABLE" and trial.net.seen.ds_status.name == "AVAILABLE"
        trial.train(2)
        if stage == 2:
            whole = trial.engine.module.state_dict()
            assert whole["head.weight"] is whole["embedding.weight"] and whole["seen"] == trial.net.seen
            assert all(torch.equal(whole[name], value) for name, value in weights(trial).items())
            for each in trial.net.parameters():  # not by the engine
                each.data.mul_(2)
            doubled = trial.engine.module.state_dict()
            assert all(torch.equal(doubled[name], whole[name] * 2) for name in weights(trial))
            trial.engine.module.load_state_dict({name: value * 0 + 1 for name, value in whole.items()})
            assert all((value == 1).all() for value in weights(trial).values())
        else:
            hooks = trial.optimizer.parameter_offload  # TRL removes and sets hooks by it
            hooks._register_deepspeed_module(hooks.module)
            assert not [*hooks.forward_hooks, *hooks.backward_hooks, *hooks.module.ds_external_parameters()]
            whole = trial.engine._zero3_consolidated_16bit_state_dict()
            assert (whole is None) == (dist.get_rank() > 0)
        held = {name: value.detach().cpu().clone() for name, value in trial.net.named_parameters()}
        assert type(held["embedding.weight"]) is torch.Tensor
        assert all(torch.equal(value.float(), held[name]) for name, value in weights(trial).items())
        expect_refusal(lambda weight=weight: torch.save(weight.detach().clone(), io.BytesIO()), "this rank's rows")
        safe, rows = dict(_deepspeed._safe_functions()), torch.full_like(weight, 0.25)
        for scope, value, number in (("full", rows, 0.25), ("full", torch.full(weight.shape, 0.5), 0.5),
                                     ("local", rows, 0.25)):
            safe[f"safe_set_{scope}_fp32_param"](weight, value)
            assert (safe["safe_get_full_fp32_param"](weight) == number).all()
    trial, stream = Trial(OURS, 0, **ADAM), io.BytesIO()
    trial.train(2)
    torch.save([list(trial.net.parameters()), trial.optimizer.state[trial.net.head.weight]], stream)
    stream.seek(0)
    parameters, state = torch.load(stream)
    assert {*map(type, parameters)} == {nn.Parameter} and type(state["exp_avg"]) is torch.Tensor
    assert all(torch.equal(each, value) for each, value in zip(parameters, weights(trial).values()))
    teacher, student = (Trial(OURS, stage, scalar=False, **ADAM) for stage in (0, 2))  # on different meshes
    student.train(2)
    for target, source in ((teacher, student), (student, teacher)):
        expected = {name: value * 0.5 + weights(source)[name] * 0.25 for name, value in weights(target).items()}
        for one, other in zip(target.net.parameters(), source.net.parameters()):
            one.data.mul_(0.5).add_(other.data, alpha=0.25)
        for name, value in weights(target).items():
            torch.testing.assert_close(value, expected[name])
    other = distribute_tensor(torch.ones(4), _rows.mesh_of((2,)), [Shard(0)])  # not of an engine
    assert type(other.cpu()) is DTensor
    torch.save(other, io.BytesIO())


def stepped(parameter):
    parameter.grad = -parameter.detach()
    torch.optim.SGD([parameter], lr=1.0).step()
    parameter.grad = None


# What doubles a parameter of one row.
CHANGES = (lambda each: each.mul_(2), lambda each: each.data.mul_(2), lambda each: each.detach().view(1, 1).mul_(2),
           lambda each: each.__setitem__(0, each[0] * 2), lambda each: torch._foreach_mul_([each], 2),
           lambda each: torch.ops.aten.mul_.Scalar(each.detach(), 2), lambda each: setattr(each, "data", each * 2),
           lambda each: torch.mul(each.data, 2, out=each.data), stepped,
           lambda each: dict(_deepspeed._safe_functions())["safe_set_full_fp32_param"](each, each.detach().cpu() * 2))


def changed():
    """Changes of a parameter, of which a rank has no row, by all ranks: then no rank reads it alone until the next
    step."""
    for config in ({}, BF16):
        trial = Trial(OURS, 1, scalar=False, **ADAM, **config)
        gain = trial.net.blocks[0].gain
        with torch.no_grad():
            for number, change in enumerate(CHANGES):
                before, ema = gain.detach().cpu(), gain.detach().clone()
                ema.mul_(2)
                assert trial.engine.read_whole(), number
                change(gain)
                assert not trial.engine.read_whole(), number
                assert torch.equal(gain.detach().cpu(), before * 2), number
                trial.engine.forget_whole()
                trial.engine.publish_whole()
        trial.net.load_state_dict({name: value.clone() for name, value in trial.net.state_dict().items()}, assign=True)
        trial.loss()
        assert trial.net.blocks[0].gain is not gain
        gain.grad = None


def changed_by_one():
    """A rank that changes a parameter alone says for what it waits, before the collective's timeout."""
    gain = Trial(OURS, 2, scalar=False, **ADAM).net.blocks[0].gain
    store = dist.distributed_c10d._get_default_store()
    _fsdp2._watch_waits.cache_clear()  # a thread with this patience
    with mock.patch.object(_fsdp2, "_PATIENCE", 0.01), torch.no_grad(), \
            mock.patch.object(_fsdp2, "say", lambda text: store.set("said", text)):
        if dist.get_rank() == 1:
            said = store.get("said").decode()
            assert said.startswith("rank 0 waits for other ranks: ") and "changed 'blocks.0.gain'" in said, said
        gain.mul_(2)


REFUSED = (({"optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-3}}, "fp16": {"enabled": True}}, "onebitlamb"),
           ({"autotuning": {"enabled": True}}, "autotuning"),
           ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "torch_autocast"),
           ({"zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": True}},
            "zero_quantized_nontrainable_weights"),
           ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/"}}}, "to nvme"))


class Lion:
    """The rule of DeepSpeed's csrc/includes/cpu_lion.h: a reference without the engine's code."""

    @staticmethod
    def of(net, lr, betas, weight_decay):
        class Made(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for each in (each for group in self.param_groups for each in group["params"]):
                    moment = self.state[each].setdefault("exp_avg", torch.zeros_like(each))
                    one, two = betas
                    way = torch.sign(one * moment + (1 - one) * each.grad)
                    each -= self.param_groups[0]["lr"] * (way + weight_decay * each)
                    self.state[each]["exp_avg"] = two * moment + (1 - two) * each.grad
        return Made(trained(net), {"lr": lr})


class Lamb:
    """The rule of DeepSpeed's csrc/lamb/fused_lamb_cuda_kernel.cu, which needs a GPU, in double."""

    @staticmethod
    def of(net, lr, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, eps_inside_sqrt=False, bias_correction=True,
           max_coeff=10.0, min_coeff=0.01):
        one, two = betas

        class Made(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for each in self.param_groups[0]["params"]:
                    state = self.state[each]
                    m, v = (state.setdefault(key, torch.zeros_like(each, dtype=torch.double)) for key in "mv")
                    number = state["number"] = state.get("number", 0) + 1
                    m.mul_(one).add_(each.grad, alpha=1 - one)
                    v.mul_(two).add_(each.grad.double() ** 2, alpha=1 - two)
                    update = m / ((v + eps).sqrt() if eps_inside_sqrt else v.sqrt() + eps) + weight_decay * each
                    weight, length = each.double().norm().item(), update.norm().item()
                    ratio = min(max(weight / length, min_coeff), max_coeff) if weight and length else 1.0
                    size = (1 - two ** number) ** 0.5 / (1 - one ** number) if bias_correction else 1.0
                    each -= self.param_groups[0]["lr"] * size * ratio * update
        return Made(trained(net), {"lr": lr})


def trained(net):
    return [each for each in net.parameters() if each.requires_grad]


# Names and values of DeepSpeed's configuration, and an optimizer with the same rule, which DeepSpeed's engine steps.
# Its own C++ optimizers are not compiled here. None: DeepSpeed makes it of the same configuration.
CONFIGURED = (
    ("Adam", {"lr": 1e-2}, lambda net: torch.optim.AdamW(trained(net), lr=1e-2, weight_decay=0.0)),
    ("Adam", {"lr": 1e-2, "adam_w_mode": True, "weight_decay": 0.1, "betas": [0.8, 0.99], "eps": 1e-6},
     lambda net: torch.optim.AdamW(trained(net), 1e-2, (0.8, 0.99), 1e-6, 0.1)),
    ("Adam", {"lr": 1e-2, "adam_w_mode": False, "weight_decay": 0.1, "bias_correction": True},
     lambda net: torch.optim.Adam(trained(net), lr=1e-2, weight_decay=0.1)),
    ("AdamW", {"lr": 1e-2}, lambda net: torch.optim.AdamW(trained(net), lr=1e-2, weight_decay=0.0)),
    ("AdamW", {"lr": 1e-2, "adam_w_mode": False, "weight_decay": 0.1},
     lambda net: torch.optim.AdamW(trained(net), lr=1e-2, weight_decay=0.1)),
    ("AdamW", {"torch_adam": True}, lambda net: torch.optim.AdamW(trained(net))),
    ("AdamW", {"fp32_optimizer_states": True}, lambda net: torch.optim.AdamW(trained(net), weight_decay=0.0)),
    ("Lion", {"lr": 1e-3}, lambda net: Lion.of(net, 1e-3, (0.9, 0.999), 0.0)),
    ("Lion", {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1, "fp32_optimizer_states": True},
     lambda net: Lion.of(net, 1e-3, (0.9, 0.99), 0.1)),
    ("Adagrad", {"lr": 1e-2, "weight_decay": 0.1}, None),
    ("Adagrad", {"fp32_optimizer_states": True}, lambda net: torch.optim.Adagrad(trained(net))),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, None),
    ("RMSprop", {"lr": 1e-3, "momentum": 0.5}, None),
    ("Muon", {"lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9, "ns_method": "standard", "torch_adam": True}, None),
    ("Muon", {"lr": 1e-2, "muon_lr": 2e-2, "adam_lr": 3e-3, "betas": [0.8, 0.99], "torch_adam": True}, None),
    ("Muon", {"lr": 1e-2, "weight_decay": 0.1, "adam_w_mode": False, "torch_adam": True}, None),
)
LAMB = ({"lr": 1e-2, "weight_decay": 0.1}, {"lr": 1e-2, "betas": [0.8, 0.9], "eps": 1e-3, "eps_inside_sqrt": True},
        {"lr": 1e-2, "bias_correction": False}, {"lr": 1e-2, "max_coeff": 0.5, "min_coeff": 0.2, "weight_decay": 1.0})
OF_PROGRAM = (  # DeepSpeed's optimizers, made by the program without its extensions in C++
    (lambda net: deepspeed.ops.adam.DeepSpeedCPUAdam(trained(net), lr=1e-2, weight_decay=0.1),
     lambda net: torch.optim.AdamW(trained(net), lr=1e-2, weight_decay=0.1)),
    (lambda net: deepspeed.ops.adam.FusedAdam(trained(net), lr=1e-2, adam_w_mode=False),
     lambda net: torch.optim.Adam(trained(net), lr=1e-2)),
    (lambda net: deepspeed.ops.lion.DeepSpeedCPULion(trained(net), lr=1e-3),
     lambda net: Lion.of(net, 1e-3, (0.9, 0.999), 0.0)),
    (lambda net: deepspeed.ops.adagrad.DeepSpeedCPUAdagrad(trained(net), lr=1e-2),
     lambda net: torch.optim.Adagrad(trained(net), lr=1e-2)))
REFUSED_VALUES = (("Adam", {"bias_correction": False}, "bias_correction: false"),
                  ("Lamb", {"amsgrad": True}, "Lamb with amsgrad"),
                  ("Muon", {"per_head_muon": True}, "Muon with per_head_muon"))
SCHEDULES = (
    ("WarmupLR", {"warmup_num_steps": 7}),
    ("WarmupLR", {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-2, "warmup_num_steps": 11, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 25, "warmup_max_lr": 1e-2, "warmup_num_steps": 5}),
    ("WarmupCosineLR", {"total_num_steps": 26, "warmup_num_steps": 5, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.01}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 6, "cycle_second_step_size": 9,
                  "decay_lr_rate": 0.1, "decay_step_size": 2, "cycle_min_mom": 0.7, "decay_mom_rate": 0.05}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 6, "cycle_momentum": False}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 2.0}),
    ("LRRangeTest", {"lr_range_test_step_size": 5, "lr_range_test_staircase": True}),
)


def configured(folder):
    """Six steps with each optimizer of a configuration; rates and betas of 30 steps with each schedule, also of those
    that are resumed in the middle."""
    for stage, (kind, values, reference) in zip(itertools.cycle((1, 2, 3)), CONFIGURED):
        each_step = {"gradient_accumulation_steps": 1}
        config = {"optimizer": {"type": kind, "params": values}, **each_step}
        if kind == "Muon":  # DeepSpeed's stage 3 needs it
            config["zero_optimization"] = {"stage": stage, "reduce_scatter": False}
        trials = [Trial(OURS, stage, scalar=False, **config), Trial(THEIRS, stage, scalar=False, **config)
                  if reference is None else
                  Trial(THEIRS, stage, lambda net: {"optimizer": reference(net)}, False, **each_step)]
        for trial in trials:
            trial.train(6, rare_from=0)
        expect_equal(("configured", stage, kind, values), trials[0].found, trials[1].found, 1e-5)
    for stage, values in enumerate(LAMB):  # DeepSpeed has the norms of whole parameters in stage 0 only
        config = {"optimizer": {"type": "Lamb", "params": values}}
        found = []
        for trial in (Trial(OURS, stage, scalar=False, **config), Trial(
                THEIRS, 0, lambda net, values=values: {"optimizer": Lamb.of(net, **values)}, False)):
            trial.train(8, rare_from=0)
            found.append([value for each in trained(trial.net) for value in _rows.whole_of(each).flatten().tolist()])
        expect_equal(("Lamb", stage, values), *found, 1e-5)
    _deepspeed.serve_optimizers()
    with mock.patch.object(deepspeed.ops.op_builder.builder.OpBuilder, "load", side_effect=AssertionError("compiles")):
        for made, reference in OF_PROGRAM:
            trials = [Trial(engine, 1, lambda net, make=make: {"optimizer": make(net)}, False)
                      for engine, make in ((OURS, made), (THEIRS, reference))]
            for trial in trials:
                trial.train()
            expect_equal("of the program", trials[0].found, trials[1].found, 1e-5)

        def lamb(net, **more):
            return {"optimizer": deepspeed.ops.lamb.FusedLamb(trained(net), eps=1e-3, eps_inside_sqrt=True, **more)}

        trials = [Trial(OURS, 1, lamb, False), Trial(OURS, 1, scalar=False, optimizer={
            "type": "Lamb", "params": {"eps": 1e-3, "eps_inside_sqrt": True}})]
        for trial in trials:
            trial.train()
        expect_equal("FusedLamb", trials[0].found, trials[1].found, 0)
        expect_refusal(lambda: Trial(OURS, 1, functools.partial(lamb, max_grad_norm=1.0), False), "max_grad_norm")
    for kind, values in SCHEDULES:
        config = {"optimizer": ADAM["optimizer"], "scheduler": {"type": kind, "params": values},
                  "gradient_accumulation_steps": 1}
        trials = [Trial(engine, 2, **config) for engine in (OURS, THEIRS)]

        def rates(trial, steps):
            for _ in range(steps):
                trial.schedule.step()
                trial.note(*trial.engine.get_lr(), *trial.engine.optimizer.param_groups[0]["betas"])

        before = (5, 13)  # steps made before a checkpoint
        for trial in trials:
            trial.train(2)
            made = 0
            for steps in before:
                rates(trial, steps - made)
                made = steps
                if trial is trials[0]:
                    trial.engine.save_checkpoint(f"{folder}/{kind}", tag=f"{steps}")
            rates(trial, 28 - made)
        expect_equal(("schedule", kind, values), trials[0].found, trials[1].found, 1e-6)
        resumed = Trial(OURS, 2, **config)
        for steps in before:
            resumed.found.clear()
            resumed.engine.load_checkpoint(f"{folder}/{kind}", tag=f"{steps}")
            resumed.note(*resumed.engine.get_lr(), *resumed.engine.optimizer.param_groups[0]["betas"])
            rates(resumed, 28 - steps)
            expect_equal(("schedule resumed", kind, values), resumed.found, trials[0].found[-len(resumed.found):], 0)
    for kind in ("OneBitAdam", "OneBitLamb", "ZeroOneAdam", "MuAdam", "MuAdamW", "MuSGD", "CPUAdam",
                 "FusedAdam"):
        config = {"optimizer": {"type": kind, "params": {"lr": 1e-2}}}
        expect_refusal(lambda config=config: Trial(OURS, 2, **config), f"the optimizer {kind}")
    with mock.patch.object(deepspeed, "_report_per_head_tagging"):  # fails without attention
        for kind, values, word in REFUSED_VALUES:
            config = {"optimizer": {"type": kind, "params": values}}
            expect_refusal(lambda config=config: Trial(OURS, 2, **config), word)


def expect_refusal(call, word, kinds=()):
    try:
        call()
    except (ConfigError, *kinds) as error:
        assert word.lower() in str(error).lower(), error
    else:
        raise AssertionError(f"nothing refused: {word}")


def with_empty(net):
    net.empty = nn.Parameter(torch.empty(0, SIZE))
    return {"model_parameters": net.parameters()}


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)


def wider(net):
    net.blocks[1].up.weight = nn.Parameter(torch.ones(SIZE, 13))
    return {"model_parameters": net.parameters()}


def with_more(net):
    net.more = nn.Linear(1, 1)
    return {"model_parameters": net.parameters()}


def without_part(net):
    del net.norm.bias
    net.norm.bias = None
    return {"model_parameters": net.parameters()}


MODEL, OPTIM = "zero_pp_rank_1_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"
# Stage, damage to a folder, the arguments of the engine that loads it, and what the error says.
DAMAGES = ((1, lambda path: cut(path / OPTIM), None, f"{OPTIM}: cannot be read as a file of torch.save"),
           (3, lambda path: cut(path / MODEL), None, f"{MODEL}: cannot be read as a file of torch.save"),
           (1, lambda path: (path / OPTIM).unlink(), None, "has 1 files *_optim_states.pt of ranks, expected 2"),
           (3, lambda path: (path / OPTIM).unlink(), None, "has 1 files *_optim_states.pt of ranks, expected 2"),
           (3, lambda path: [each.unlink() for each in path.glob("*optim*")], None, "has 0 files *_optim_states.pt"),
           (3, lambda path: (path / MODEL).unlink(), None, "has 1 files *_model_states.pt of ranks, expected 2"),
           (1, lambda path: [each.unlink() for each in path.glob("*model*")], None, "it has no file mp_rank_00_model"),
           (1, lambda path: (path / "zero").mkdir(), None, "is a universal checkpoint"),
           *((stage, lambda path: shutil.copy(f"{path.parent}/{path.stem}.later/{OPTIM}", path), None,
              "of more than one save: the steps of their optimizers are") for stage in (1, 3)),
           *((stage, lambda path: None, wider, "'blocks.1.up.weight' has the shape [13, 6], expected [6, 13]")
             for stage in (1, 3)),
           (3, lambda path: None, with_more, "Missing key(s): ['more.weight', 'more.bias']"),
           (1, lambda path: None, without_part, "Unexpected key(s): ['norm.bias']"))


def damaged(folder):
    for stage in (1, 3):
        trial = Trial(OURS, stage, scalar=False, **ADAM)
        trial.train(2)
        trial.engine.save_checkpoint(f"{folder}/damaged", tag=str(stage))
        trial.train(2)
        trial.engine.save_checkpoint(f"{folder}/damaged", tag=f"{stage}.later")
        trials = {None: trial}
        for number, (kind, damage, arguments, words) in enumerate(DAMAGES):
            path = pathlib.Path(folder, "damaged", f"{stage}.{number}")
            if kind == stage:
                if dist.get_rank() == 0:
                    shutil.copytree(f"{folder}/damaged/{stage}", path)
                    damage(path)
                dist.barrier()
                if arguments not in trials:
                    trials[arguments] = Trial(OURS, stage, arguments, scalar=False, **ADAM)
                load = functools.partial(trials[arguments].engine.load_checkpoint, path.parent, path.name)
                expect_refusal(load, words, [RuntimeError])


def reloaded(folder):
    """A load that is refused leaves the states of the optimizer, and another one those without elements."""
    trial, other = Trial(OURS, 1, **ADAM), Trial(OURS, 1, grouped)
    trial.engine.save_checkpoint(f"{folder}/1/groups")
    other.train(2)
    before = contents(other)
    expect_refusal(lambda: other.engine.load_checkpoint(f"{folder}/1/groups"), "1 parameter groups, this optimizer 2")
    after = contents(other)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items() if name.startswith("exp_avg"))
    for exact in (True, False):
        section = {"stage": 2, "load_from_fp32_weights": exact}
        trial = Trial(OURS, 2, **ADAM, **BF16, zero_optimization=section)
        trial.train()
        trial.engine.save_checkpoint(f"{folder}/1/exact{exact}")
        before = weights(trial)
        trial.engine.load_checkpoint(f"{folder}/1/exact{exact}")
        for name, value in weights(trial).items():
            assert torch.equal(value, before[name] if exact else before[name].bfloat16().float()), name
        assert any(not torch.equal(value, value.bfloat16().float()) for value in before.values())
    trial = Trial(OURS, 1, with_empty, optimizer={"type": "Adagrad", "params": {"lr": 1e-2}})
    trial.train(2)
    trial.engine.save_checkpoint(f"{folder}/1/empty")
    trial.engine.load_checkpoint(f"{folder}/1/empty")
    trial.train(2)

    def change_while_read(*_):
        if dist.get_rank() == 0:
            os.utime(f"{folder}/1/empty/global_step1")

    with mock.patch.object(_deepspeed._deepspeed_files, "_load_optimizer", change_while_read):
        expect_refusal(lambda: trial.engine.load_checkpoint(f"{folder}/1/empty"), "while the checkpoint was read")


def refused():
    for config, word in REFUSED:
        expect_refusal(lambda config=config: Trial(OURS, 2, **config), word)
    with mock.patch.object(_deepspeed._rejoin, "membership", types.SimpleNamespace(is_elastic=False)), \
            mock.patch.object(_deepspeed, "_leave_groups", None):
        expect_refusal(lambda: Trial(OURS, 2, **ADAM), "which cannot leave its process groups")
    trial = Trial(OURS, 1, **ADAM)
    trial.engine.backward(trial.loss())
    trial.net.to("cpu")
    expect_refusal(lambda: setattr(trial.net.head.weight, "data", torch.ones(3, 3)), "data of shape [3, 3]")
    expect_refusal(trial.net.blocks[1].zero_grad, "'blocks.1.gain' alone before it is reduced")
    trial.engine.zero_grad()
    earlier, loss = trial.engine, trial.loss()
    trial.start(OURS, lambda _: {"optimizer": torch.optim.SGD(trial.net.parameters(), 0.1)})
    for call in (earlier.step, lambda: earlier.backward(loss)):
        expect_refusal(call, "another deepspeed.initialize of its module")
    trial.settings["zero_optimization"] = {"stage": 3}
    expect_refusal(lambda: trial.start(OURS, lambda _: {}), "in another stage")
    kept = []

    def sharing(net):
        kept.append(net.norm.weight)
        net.norm.weight = kept[0]
        return {"model_parameters": net.parameters()}

    Trial(OURS, 1, sharing, **ADAM)
    expect_refusal(lambda: Trial(OURS, 1, sharing, **ADAM), "'norm.weight' is also of another engine's module")


def quantized():
    """ZeRO++ on one machine: the runtime gets the keys, and nothing is rounded."""
    keys = {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    trials = [Trial(OURS, 3, **ADAM, **more) for more in ({}, {"zero_optimization": {"stage": 3, **keys}})]
    for trial in trials:
        trial.train()
    assert trials[0].found == trials[1].found, [trial.found for trial in trials]
    given = [dict(fields) for fields in _fsdp2._runtimes]
    assert any(each.get("quantized_weights") == each.get("quantized_gradients") == "true" for each in given), given


def sent():
    """communication_data_type in fp32 too: rounded gradients, and nothing else."""
    for stage in (0, 2):
        trials = [Trial(OURS, stage, **ADAM, **more) for more in ({}, {"communication_data_type": "bf16"})]
        for trial in trials:
            trial.train()
        assert trials[0].found != trials[1].found
        expect_equal(("sent", stage), trials[1].found, trials[0].found, 1e-2)


def travels(stage, folder, config):
    """What one engine has saved, the other resumes from; DeepSpeed's script merges it."""
    straight = Trial(THEIRS, stage, **config)
    straight.train(4, rare_from=0)
    straight.train(4, rare_from=0)
    for number, (one, other) in enumerate(((OURS, THEIRS), (THEIRS, OURS), (OURS, OURS))):
        trial, path = Trial(one, stage, **config), f"{folder}/{number}"
        trial.train(4, rare_from=0)
        trial.engine.save_checkpoint(path, client_state={"note": number})
        if one is OURS:  # in place of the last one, next to the program's own files
            notes = pathlib.Path(path, "global_step2", "notes")
            if dist.get_rank() == 0:
                notes.touch()
            trial.engine.save_checkpoint(path, client_state={"note": number})
            assert notes.exists() and not list(pathlib.Path(path).glob("*.acc-*")), os.listdir(path)
        assert sorted(os.listdir(path))[:2] == ["global_step2", "latest"], os.listdir(path)
        if one is OURS and stage > 0:
            with contextlib.redirect_stdout(io.StringIO()):
                merged = get_fp32_state_dict_from_zero_checkpoint(path)
            for name, value in weights(trial).items():
                is_left_out = stage == 1 and name.startswith("frozen.")  # by DeepSpeed too
                assert is_left_out or torch.equal(merged[name], value), name
        resumed = Trial(other, stage, **config)
        resumed.generator = trial.generator
        loaded, client = resumed.engine.load_checkpoint(path)
        assert loaded is not None and client["note"] == number, (loaded, client)
        if other is OURS:
            keep(resumed, f"{path}/reference")
        resumed.train(4, rare_from=0)
        expect_equal(("travels", stage, number), trial.found + resumed.found, straight.found, 1e-5 if not config.get(
            "bf16") else 1e-2)


def on_disk(folder, stage, config):
    """With the states of the optimizer in a file, of pieces that have one or a few parameters."""
    section = {"stage": stage, "offload_optimizer": {"device": "nvme", "nvme_path": folder}}
    return {**config, "zero_optimization": section, "aio": {"block_size": 4096, "queue_depth": 1}}


def nvme(folder):
    """Offload of the optimizer's states to NVMe changes no bit, of losses and of checkpoints."""
    adagrad = {"optimizer": {"type": "Adagrad", "params": {"lr": 1e-2}}}
    lion = {"optimizer": {"type": "Lion", "params": {"lr": 1e-3, "weight_decay": 0.1}}}
    for stage, config, arguments in ((0, lion, None), (1, {}, grouped), (2, ADAM | FP16, None), (3, adagrad, None),
                                     (3, ADAM | BF16, None), (3, {}, called)):
        more = {} if arguments is None else {"arguments": arguments}
        trials = [Trial(OURS, stage, **more, **each) for each in (config, on_disk(folder, stage, config))]
        for trial in trials:
            trial.train(4)
        expect_equal(("nvme", stage), trials[1].found, trials[0].found, 0)
        filed = [each for each in trials[1].optimizer.files.states.values() if each.places]
        assert len(trials[1].optimizer.files.pieces) > (1 if config in (ADAM | FP16, ADAM | BF16) else 0) and all(
            value is _nvme._IN_FILE for each in filed for key, value in each.held.items() if key in each.places)
        kept, filed = map(contents, trials)
        assert kept.keys() == filed.keys() and len(kept) > 20
        assert all(torch.equal(kept[name], value) for name, value in filed.items())
        for trial in trials:  # a state dict is in memory, and goes back into the file
            own = trial.optimizer.optimizer
            own.load_state_dict(own.state_dict())
            trial.train(2)
        expect_equal(("nvme", stage, "loaded"), trials[1].found, trials[0].found, 0)
        for trial in trials:  # a parameter is removed; others are trained from now on, with states that are given whole
            own, later = trial.optimizer.optimizer, [*trial.net.frozen.requires_grad_(True).parameters()]
            own.state.pop(own.param_groups[0]["params"].pop())
            own.param_groups[0]["params"] += later
            trial.train(2)
            for each in later:
                own.state[each].update({key: _deepspeed._whole_of(value) for key, value in own.state[each].items()
                                        if isinstance(value, DTensor)})
            trial.train(2)
            own.load_state_dict(own.state_dict())
            trial.train(2)
        expect_equal(("nvme", stage, "others"), trials[1].found, trials[0].found, 0)
        weight = trials[1].net.head.weight
        key = next(iter(trials[1].optimizer.files.states[weight].places))
        dict(_deepspeed._safe_functions())["safe_set_full_optimizer_state"](weight, torch.ones(weight.shape), key)
        assert (_deepspeed._whole_of(trials[1].optimizer.state[weight][key]) == 1).all()
        whole = torch.rand(weight.shape, generator=torch.Generator().manual_seed(5))
        trials[1].optimizer.state[weight][key] = whole
        assert torch.equal(_deepspeed._whole_of(trials[1].optimizer.state[weight][key]), whole)
        with mock.patch.object(_nvme.FileState, "__getitem__"):  # reads the file
            assert key in trials[1].optimizer.state[weight]
            assert not _nvme.FileState.__getitem__.called
        with torch.device("meta"):  # the program's default
            assert trials[1].optimizer.state[weight][key].device.type == "cpu"
        torch.set_default_dtype(torch.float64)
        kinds = _nvme._elementwise_states(trials[1].optimizer.optimizer, trials[1].optimizer.param_groups[0])
        torch.set_default_dtype(torch.float32)
        assert {*kinds.values()} == {torch.float32}
    for stage, config in TRAVELS[1:]:
        trial, path = Trial(OURS, stage, **on_disk(folder, stage, config)), f"{folder}/{stage}/nvme"
        trial.train(4)
        trial.engine.save_checkpoint(path)
        keep(trial, f"{path}/reference")
        for options in (config, on_disk(folder, stage, config)):  # with and without
            resumed = Trial(OURS, stage, **options)
            resumed.generator.set_state(trial.generator.get_state())
            resumed.engine.load_checkpoint(path)
            resumed.train(4)
            if options is config:
                kept = resumed.found
        expect_equal(("nvme resumed", stage), resumed.found, kept, 0)
    # The files have no names; folders are those of checkpoints.
    assert all(os.path.isdir(os.path.join(folder, name)) for name in os.listdir(folder)), os.listdir(folder)
    without_path = on_disk(folder, 2, ADAM)
    del without_path["zero_optimization"]["offload_optimizer"]["nvme_path"]
    for config, arguments, word in (
            (without_path, None, "offload_optimizer.nvme_path is not set"),
            (on_disk("/proc", 2, ADAM), None, "cannot make a file in /proc (zero_optimization.offload_optimizer.nvme"),
            (on_disk(folder, 2, {}), lambda net: {"optimizer": torch.optim.Adafactor(net.parameters())},
             "offload_optimizer to nvme with the optimizer Adafactor")):
        more = {} if arguments is None else {"arguments": arguments}
        expect_refusal(lambda config=config, more=more: Trial(OURS, 2, **more, **config), word)
    def scheduled(optimizer):
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        optimizer.step = functools.wraps(optimizer.step)(lambda: None)

    for change, word in ((lambda each: each.register_step_post_hook(lambda *_: None), "hooks of the steps of AdamW"),
                         (scheduled, "a method step of the program's own of AdamW")):
        trial = Trial(OURS, 2, **on_disk(folder, 2, ADAM))
        change(trial.optimizer.optimizer)
        expect_refusal(lambda trial=trial: trial.train(2), word)
    hook = register_optimizer_step_pre_hook(lambda *_: None)
    expect_refusal(lambda: Trial(OURS, 2, **on_disk(folder, 2, ADAM)), "hooks of the steps of AdamW")
    hook.remove()


def expect_equal(what, ours, theirs, tolerance):
    assert len(ours) == len(theirs), (what, ours, theirs)
    for number, (a, b) in enumerate(zip(ours, theirs)):
        assert a == b or abs(a - b) <= tolerance * max(1.0, abs(b)), (what, number, ours, theirs)


def worker(part, folder):
    torch.set_num_threads(1)
    deepspeed.get_accelerator().is_fp16_supported = lambda: True  # DeepSpeed's engine refuses it on some CPUs
    deepspeed.init_distributed("gloo")
    _deepspeed.serve_tensors()
    PARTS[part][1](folder)
    print("trained", flush=True)
    leave()


def cases(folder):
    only = os.environ.get("ONLY", "")
    failed = []
    for name, stage, case, config, arguments, tolerance in CASES:
        if only not in f"{name}{stage}":
            continue
        more = {} if arguments is None else {"arguments": arguments}
        trials = [Trial(engine, stage, **more, **config) for engine in (THEIRS, OURS)]
        for trial in trials:
            case(trial)
        try:
            expect_equal((name, stage), trials[1].found, trials[0].found, tolerance)
        except AssertionError as error:
            failed.append(name)
            if dist.get_rank() == 0:
                print(error, flush=True)
    if only in "damaged":
        damaged(folder)
    if only in "other":
        alike()
        gathered()
        changed()
        changed_by_one()
        refused()
        reloaded(folder)
        quantized()
        sent()
    for stage, config in TRAVELS:
        if only in f"travels{stage}":
            travels(stage, f"{folder}/{stage}", config)
    if only in "nvme":
        nvme(folder)
    if only in "rules":
        save_rules(folder)
    if only in "universal":
        save_universal(folder)
    assert not failed


FAULTS = ("EIO", "ENOSPC", "kill", "full")
MESSAGES = ("cannot write 8192 bytes at offset 0: Input/output error (EIO)",
            "bytes at offset 4096: No space left on device (ENOSPC)", "SIGKILL",
            "offload to nvme: cannot reserve ", "No space left on device; ")


def faults(folder):
    """Faults of the disk on which rank 1 has the states of the optimizer (test/support/file_faults.c), each in an
    attempt of its own. The next attempt goes on from the checkpoint; the last one has no fault."""
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
    disk, path, expected = f"{folder}/disk", f"{folder}/before", f"{folder}/expected{rank}"
    os.makedirs(disk, exist_ok=True)

    def trained(seed, load=True):
        # One piece of two pages: its write is the only one of a step.
        trial = Trial(OURS, 2, **{**on_disk(disk, 2, ADAM), "aio": {"block_size": 16384, "queue_depth": 1}})
        if load:
            trial.engine.load_checkpoint(path)
        trial.generator.manual_seed(seed + rank)
        trial.train(2)
        return trial

    if attempt == 0:
        trial = trained(1, load=False)
        trial.engine.save_checkpoint(path)
        made = len(trial.found)
        trial.generator.manual_seed(2 + rank)
        trial.train(2)
        torch.save(trial.found[made:], expected)
    trial = trained(2)
    expect_equal(("after a fault", attempt), trial.found, torch.load(expected), 0)
    dist.barrier()
    if attempt < len(FAULTS):
        kind = FAULTS[attempt]
        own = {"ACC_FAULT": "ENOSPC" if kind == "full" else kind, "ACC_FAULT_AT": "1", "ACC_FAULT_UNDER": disk}
        with mock.patch.dict(os.environ, own if rank == 1 else {}):
            trained(3) if kind == "full" else trial.train(2)


# Number of ranks, and function of the folder. "elsewhere" loads what "cases" has saved.
PARTS = {"configured": (2, configured), "cases": (2, cases), "elsewhere": (3, elsewhere), "faults": (2, faults)}


def main():
    os.environ["DS_ACCELERATOR"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        for part in os.environ.get("PART", " ".join(PARTS)).split():
            ranks, _ = PARTS[part]
            if part == "faults":
                # Transfers by threads, because a preloaded library sees no request of io_uring.
                run = run_ranks(ranks, part, folder, preload="deepspeed", under=(sys.argv[4], "io_uring_setup:EPERM"),
                                flags=("--max_restarts", str(len(FAULTS)), "--restart_backoff", "0"),
                                variables={"LD_PRELOAD": sys.argv[3]})
                assert all(each in run.stderr for each in MESSAGES), run.stderr
                assert not os.listdir(f"{folder}/disk")
            else:
                run = run_ranks(ranks, part, folder, preload="deepspeed")
            assert run.stdout.count("trained") == ranks, run.stdout


if __name__ == "__main__":
    worker(*sys.argv[1:]) if "RANK" in os.environ else main()
