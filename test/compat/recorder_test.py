# SPDX-License-Identifier: Apache-2.0
"""recorder_test.py ACCLAUNCH PACKAGE: trains one model under many frameworks, on torch's engine and on the engine acc,
and records it. The recordings must say the same as that of plain torch on the global batch, and losses must not change.
Exits with 77 without torch."""

import collections
import functools
import importlib.util
import json
import math
import os
import pathlib
import sys
import tempfile

if not importlib.util.find_spec("torch"):
    print("skipped: no torch")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from leave import leave  # noqa: E402
from run_ranks import run_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

sys.path[:0] = sys.argv[2:3]
from acclaunch import _recorded_values, _recorder  # noqa: E402

WORDS, SIZE, ROWS, LENGTH, STEPS, MICRO_STEPS = 61, 12, 8, 9, 3, 2
LIMIT = 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 37), nn.Linear(37, SIZE)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """With a tied parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        self.seen += 1
        return self.head(self.norm(x))


def new_net():
    torch.manual_seed(3)
    return Net()


def batches(rank, ranks):
    """The micro-steps' batches of this rank in all steps."""
    data = torch.randint(WORDS, (STEPS, MICRO_STEPS, ranks, ROWS // ranks, LENGTH),
                         generator=torch.Generator().manual_seed(5))
    return [list(step[:, rank]) for step in data]


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


# ---- trainings: each returns its losses -------------------------------------------------------------


def train(model, micro_batches, clip=None):
    optimizer, found = adamw(model), []
    for step in micro_batches:
        for ids in step:
            loss = loss_of(model, ids)
            (loss / len(step)).backward()
            found.append(loss.item())
        found.append(float((clip or functools.partial(nn.utils.clip_grad_norm_, model.parameters()))(LIMIT)))
        optimizer.step()
        optimizer.zero_grad()
    return found


def own_batches():
    return batches(dist.get_rank(), dist.get_world_size())


def train_plain():
    """On the batches of all ranks."""
    parts = zip(*(batches(rank, dist.get_world_size()) for rank in range(dist.get_world_size())))
    return train(new_net(), [[torch.cat(each) for each in zip(*step)] for step in parts])


def train_ddp():
    return train(nn.parallel.DistributedDataParallel(new_net()), own_batches())


def train_fsdp2(**arguments):
    from torch.distributed.fsdp import fully_shard
    net = new_net()
    for each in (*net.blocks, net):
        fully_shard(each, **arguments)
    return train(net, own_batches())


def train_fsdp1(**arguments):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    net = FullyShardedDataParallel(new_net(), auto_wrap_policy=ModuleWrapPolicy([Block]),
                                   device_id=torch.device("cpu"), **arguments)
    return train(net, own_batches(), net.clip_grad_norm_)


def train_deepspeed(stage, **settings):
    import deepspeed
    import plain_muon  # noqa: F401
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles C++ code
    deepspeed.utils.logger.setLevel("ERROR")
    net = new_net()
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
        "train_micro_batch_size_per_gpu": ROWS // dist.get_world_size(), "gradient_accumulation_steps": MICRO_STEPS,
        "gradient_clipping": LIMIT, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 1e-2, "torch_adam": True}}, **settings})
    found = []
    for ids in sum(own_batches(), []):
        loss = loss_of(engine, ids)
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


def train_accelerate(**arguments):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_STEPS, **arguments)
    net = new_net()
    model, optimizer = accelerator.prepare(net, adamw(net))
    found = []
    for ids in sum(own_batches(), []):
        with accelerator.accumulate(model):
            loss = loss_of(model, ids)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                found.append(float(accelerator.clip_grad_norm_(model.parameters(), LIMIT)))
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    return found


BF16 = {"bf16": {"enabled": True}}
# name: the training, the wrapper that the recording names on torch's engine, and the tolerance
CASES = {
    "DDP": (train_ddp, "ddp", 1e-4),
    "FSDP2": (train_fsdp2, "fsdp2", 1e-4),
    "FSDP1": (functools.partial(train_fsdp1, use_orig_params=False), "fsdp", 1e-4),
    "FSDP1, use_orig_params": (functools.partial(train_fsdp1, use_orig_params=True), "fsdp", 1e-4),
}
if importlib.util.find_spec("accelerate"):
    CASES["Accelerate"] = train_accelerate, "ddp", 1e-4
if importlib.util.find_spec("deepspeed"):
    CASES |= {f"DeepSpeed, stage {stage}{suffix}":
              (functools.partial(train_deepspeed, stage, **more), "deepspeed", bound)
              for suffix, more, bound in (("", {}, 1e-4), (", bf16", BF16, 0.2)) for stage in range(4)
              if not suffix or stage != 2}
ON_ACC = {"FSDP2", "FSDP1", "DeepSpeed, stage 1", "DeepSpeed, stage 3, bf16"}


# ---- other programs, in one process: each returns its losses --------------------------------------------

WIDTH = 8


def mlp(*more):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *more, nn.GELU(), nn.Linear(WIDTH, WIDTH))


def rows(count=3):
    return torch.randn(count, 6, WIDTH, generator=torch.Generator().manual_seed(2)).unbind()


def loop(net, call=None, optimizer=None, loss=lambda output: output.square().mean(), count=3):
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-2)
    found = []
    for x in rows(count):
        value = loss((call or net)(x))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(value.item())
    return found


class Composed(nn.Module):
    """A forward of submodules that is given as a function."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x, *self.parts)


def checkpointed(reentrant):
    return loop(Composed(lambda x, part: checkpoint(part, x + part(x), use_reentrant=reentrant), mlp()))


def in_place():
    def forward(x, first, view, second, activation):
        y = view(first(x))
        y.mul_(2.0)
        y[:, :3].add_(1.0)
        return second(activation(y + 0))
    view = Composed(lambda x: x.view_as(x))
    return loop(Composed(forward, mlp(), view, mlp(), nn.ReLU(inplace=True)))


def closure(make):
    net, found = mlp(), []
    optimizer = make(net.parameters())
    for x in rows():
        def compute(x=x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            found.append(loss.item())
            return loss
        optimizer.step(compute)
    return found


def scaled(**arguments):
    """The second step is skipped."""
    net, scaler, found = mlp(), torch.amp.GradScaler("cpu", init_scale=2.0**10), []
    optimizer = torch.optim.AdamW(net.parameters(), **arguments)
    for number, x in enumerate(rows()):
        loss = net(x).square().mean() * (math.inf if number == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def adversaries():
    maker, judge, found = mlp(), nn.Linear(WIDTH, 1), []
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (judge, maker)]
    for x in rows():
        for optimizer, made in zip(optimizers, (maker(x).detach(), None)):
            loss = F.softplus(judge(maker(x) if made is None else made)).mean()
            loss.backward()
            optimizer.step()
            for each in optimizers:
                each.zero_grad()
            found.append(loss.item())
    return found


def several_optimizers():
    net, found = mlp(), []
    optimizers = [torch.optim.AdamW(net[0].parameters()), torch.optim.SGD(net[2].parameters(), lr=0.1)]
    for x in rows():
        loss = net(x).square().mean()
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        found.append(loss.item())
    return found


def optimizers_in_backward():
    net, found = mlp(), []
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in net.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(update)
    for x in rows():
        loss = net(x).square().mean()
        loss.backward()
        found.append(loss.item())
    return found


def with_evaluation():
    net = nn.Sequential(nn.BatchNorm1d(WIDTH), *mlp())

    def call(x):
        net.eval()
        net(x)  # with gradients
        with torch.no_grad():
            net(x)
        net.train()
        return net(x)
    return loop(net, call)


def odd_parameters():
    """Complex, integer, double, empty and scalar ones."""
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.complex = nn.Parameter(torch.ones(WIDTH, dtype=torch.complex64) * (1 + 0.5j))
            self.integer = nn.Parameter(torch.arange(WIDTH), requires_grad=False)
            self.scalar, self.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
            self.last = nn.Linear(WIDTH, WIDTH).double()

        def forward(self, x):
            x = torch.view_as_real(x * self.complex).sum(-1) * self.scalar + self.integer
            return self.last(x.double()).float() + self.empty.sum()
    torch.manual_seed(1)
    return loop(Odd())


def sparse_gradients():
    net = nn.Embedding(9, WIDTH, sparse=True)
    nn.init.ones_(net.weight)
    return loop(net, lambda x: net((x[0] > 0).long()), torch.optim.SGD(net.parameters(), lr=0.1))


def without_values():
    from torch._subclasses.fake_tensor import FakeTensorMode
    net = mlp()
    weights = {name: each.detach() for name, each in net.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(net, weights, (x,)).square().mean()

    with FakeTensorMode():
        mlp()(torch.empty(2, WIDTH)).sum().backward()
    with torch.device("meta"):
        mlp()(torch.empty(2, WIDTH))
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.stack(rows()))
    return [each.sum().item() for each in found.values()] + loop(net)


class Inherited(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


def autocast(x, net=None):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x).float()


def random_net():
    torch.manual_seed(1)
    net = Composed(lambda x, first, layer, last: last(layer(F.dropout(first(x), 0.2)[None])[0]), mlp(),
                   nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.3, batch_first=True),
                   nn.LSTM(WIDTH, 4, 2, dropout=0.4))
    torch.manual_seed(2)
    return loop(net, lambda x: net(x)[0])


# name: the program, by step whether it was skipped and how many parameters have changed, and lines of a phase
PROGRAMS = {
    "reentrant checkpoints": (functools.partial(checkpointed, True), [(False, 4)] * 3, {"forward": 27, "backward": 27}),
    "checkpoints": (functools.partial(checkpointed, False), [(False, 4)] * 3, {"forward": 27, "backward": 27}),
    "changes in place": (in_place, [(False, 8)] * 3, {"forward": 33, "backward": 30}),
    "LBFGS": (lambda: closure(functools.partial(torch.optim.LBFGS, max_iter=3)), [(False, 4)] * 3,
              {"weights": 4, "gradient": 12, "updated": 12}),
    "closures": (lambda: closure(torch.optim.AdamW), [(False, 4)] * 3, {"weights": 4, "gradient": 12}),
    "GradScaler": (scaled, [(False, 4), (True, 0), (False, 4)], {"gradient": 8}),
    "GradScaler, fused": (lambda: scaled(fused=True), [(False, 4), (True, 0), (False, 4)], {"gradient": 12}),
    "two models in turn": (adversaries, [(False, 2), (False, 4)] * 3, {"weights": 6}),
    "two optimizers": (several_optimizers, [(False, 4)] * 3, {"gradient": 12}),
    "optimizers in backward": (optimizers_in_backward, [(False, 4)] * 3, {"gradient": 12}),
    "evaluation": (with_evaluation, [(False, 6)] * 3, {"forward": 15, "backward": 15, "buffer": 6}),
    "training in evaluation mode": (lambda: loop(mlp(nn.Dropout()).eval()), [(False, 4)] * 3, {"forward": 15}),
    "sparse gradients": (sparse_gradients, [(False, 1)] * 3, {"gradient": 3}),
    "odd parameters": (odd_parameters, [(False, 4)] * 3, {"gradient": 12}),
    "not finite": (lambda: [str(each) for each in loop(mlp(), loss=lambda y: (y * math.nan).sum())],
                   [(False, 4), (False, 0), (False, 0)], {"gradient": 12}),
    "a module twice": (lambda: loop(net := mlp(), lambda x: net(net(x))), [(False, 4)] * 3, {"forward": 24}),
    "tensors without values": (without_values, [(False, 4)] * 3, {"forward": 12}),
    "models made again": (lambda: loop(mlp(), count=2) + loop(mlp(), count=2), [(False, 4)] * 4, {"weights": 8}),
    "step() of a superclass": (lambda: loop(net := mlp(), optimizer=Inherited(net.parameters())), [(False, 4)] * 3,
                               {"gradient": 12}),
    "autocast": (lambda: loop(net := mlp(), functools.partial(autocast, net=net)), [(False, 4)] * 3, {"gradient": 12}),
    "a scripted module": (lambda: loop(torch.jit.trace(mlp(), rows()[0])), [(False, 4)] * 3, {"forward": 3}),
    "torch.compile": (lambda: loop(torch.compile(mlp(nn.Dropout(0.0)), backend="eager", fullgraph=True)),
                      [(False, 4)] * 3, {"gradient": 12}),
    "random numbers": (random_net, [(False, 24)] * 3, {}),
}


def check_program(folder, name):
    program, steps, counts = PROGRAMS[name]
    _recorder._recorder.is_over = True
    without = program()
    assert record(folder, program) == without, name
    lines = [json.loads(line) for path in pathlib.Path(folder).iterdir() for line in path.read_text().splitlines()]
    found = [(line["skipped"], line["parameters"]) for line in lines if line["kind"] == "step"]
    assert found == steps, (name, found)
    phases = collections.Counter(line.get("phase") for line in lines)
    assert {phase: phases[phase] for phase in counts} == counts, (name, phases)
    return lines


# ---- recordings -------------------------------------------------------------------------------------


def read(folder):
    """By step, phase and name: the number of elements, the sum of squares and the sketch of all ranks' parts; and the
    other lines of each rank."""
    parts, others = collections.defaultdict(dict), collections.defaultdict(list)
    for path in sorted(pathlib.Path(folder).glob("rank_*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] != "tensor":
                others[line["kind"]].append(line)
                continue
            found = parts[line["step"], line["phase"], line["name"]]
            found[(line.get("begin", 0), line["count"]) if "micro_step" not in line else len(found)] = line
    return {key: [sum(each["count"] for each in found.values()), sum(each["squares"] for each in found.values()),
                  [sum(each["sketch"][k] for each in found.values()) for k in range(4)]]
            for key, found in parts.items()}, others


def expect_alike(name, found, expected, tolerance):
    assert found.keys() == expected.keys(), (name, sorted(found.keys() ^ expected.keys())[:8])
    for key in expected:
        if key[1] == "buffer":
            continue
        (count, squares, sketch), (their_count, their_squares, theirs) = found[key], expected[key]
        if key[1] == "backward":  # of a mean over fewer samples
            factor = dist.get_world_size()
            squares, sketch = squares / factor**2, [each / factor for each in sketch]
        assert count == their_count, (name, key, count, their_count)
        if tolerance > 0.1 and key[0] > 0:  # Adam has made more of the differences
            continue
        bound = tolerance * (their_squares**0.5 * (count**0.5 if "ward" in key[1] else 1)
                             + (0.1 if key[1] == "updated" else 1e-3) * count**0.5)  # Adam takes the sign of small ones
        assert abs(squares**0.5 - their_squares**0.5) <= bound, (name, key, squares, their_squares)
        assert all(abs(a - b) <= bound for a, b in zip(sketch, theirs)), (name, key, sketch, theirs)


def record(folder, training):
    os.environ["ACC_RECORD"] = str(folder)
    _recorder.install()
    try:
        return training()
    finally:
        _recorder._recorder.end("exit")


def check_case(folder, name):
    training, wrapper, tolerance = CASES[name]
    without = training()
    found = record(folder / name, training)
    assert found == without, (name, found, without)
    dist.barrier()
    lines, others = read(folder / name)
    expected, _ = read(folder / "plain" / str(dist.get_rank()))
    expect_alike(name, lines, expected, tolerance)
    ranks = dist.get_world_size()
    assert [each["world_size"] for each in others["program"]] == [ranks] * ranks, others["program"]
    for model in others["model"]:
        assert model["wrapper"] == ("acc" if os.environ.get("ACC_ENGINE") == "acc" else wrapper), (name, model)
        whole = {each["name"]: each["shape"] for each in model["parameters"]}
        assert whole == {key: list(each.shape) for key, each in Net().named_parameters(remove_duplicate=False)}, whole
        assert [each["same_as"] for each in model["parameters"] if "same_as" in each] == ["embedding.weight"], model
    assert len(others["clip"]) == STEPS * ranks and all(
        each["limit"] == LIMIT and each["norm"] > LIMIT for each in others["clip"]), (name, others["clip"])
    assert all(each["settings"]["lr"] == 1e-2 for each in others["group"]), (name, others["group"])
    assert len(others["loss"]) == STEPS * MICRO_STEPS * ranks and not any(
        each["skipped"] for each in others["step"]), (name, others["step"])


def check_on_rank(folder):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    record(folder / "plain" / str(dist.get_rank()), train_plain)
    for name in CASES:
        if os.environ.get("ACC_ENGINE") != "acc" or name in ON_ACC:
            check_case(folder, name)
            dist.barrier()
    leave()


def check_sketches():
    """Against sums in plain Python by the definition in docs/formats/recording.md."""
    def sign(seed, bit):
        value = (seed + 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return -1 if (value ^ value >> 31) >> bit & 1 else 1

    signs = [[sign(seed, bit) for seed in range(4096)] for bit in range(8)]
    values = torch.randn(40 * 4096 + 80, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for begin, count in ((0, 12365), (0, 5), (4000, 100), (4096, 4096), (7, 140_000), (4096 * 4096 - 10, 9000)):
            part = values[:count].to(dtype)
            expected = [sum(x * signs[k][i % 4096] * signs[k + 4][i // 4096 % 4096]
                            for i, x in enumerate(part.tolist(), begin)) for k in range(4)]
            squares, *sketch = _recorded_values.of_part(part, begin).tolist()
            assert math.isclose(squares, part.double().square().sum().item(), rel_tol=1e-5), (dtype, begin, count)
            assert all(abs(a - b) < 1e-6 * squares**0.5 for a, b in zip(sketch, expected)), (dtype, begin, count)
    def of(batch):
        return _recorded_values.of_sums(*([each] for each in _recorded_values.of_batch(batch)))[0]

    batch = values[:600].view(4, 5, 30)
    assert torch.allclose(of(batch), sum(map(of, batch.flip(0).split(3))), atol=1e-3)
    assert torch.allclose(of(batch)[1:], _recorded_values.of_part(batch.sum((0, 1)), 0)[1:], atol=1e-3)
    assert torch.allclose(of(values.bfloat16().view(-1, 5)), of(values.bfloat16().float().view(-1, 5)), atol=1e-2)


def check_random_modes():
    """`equal` makes two trainings equal that begin with other random states, and `off` leaves dropout out."""
    def seeded(seed):
        net = mlp(nn.Dropout(0.5))
        torch.manual_seed(seed)
        return loop(net)

    results = {}
    for mode in ("keep", "equal", "off"):
        os.environ["ACC_RECORD_RANDOM"] = mode
        with tempfile.TemporaryDirectory() as folder:
            results[mode] = [record(f"{folder}/{seed}", functools.partial(seeded, seed)) for seed in (1, 2)]
    assert results["keep"][0] != results["keep"][1] and results["equal"][0] == results["equal"][1], results
    assert results["off"] == [loop(mlp())] * 2 and random_net() == random_net(), results


def check_programs():
    os.environ["ACC_RECORD"] = "unused"
    _recorder.install()
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(PROGRAMS):
            lines = check_program(f"{folder}/{number}", name)
        rates = {each["class"]: each["rate"] for line in lines if line["kind"] == "model"
                 for each in line["modules"] if "rate" in each}
        assert rates == {"Composed": None, "MultiheadAttention": 0.3, "Dropout": 0.3, "LSTM": 0.4}, rates


def train_some_steps():
    """The recorder, which the package's import has installed, ends the ranks."""
    dist.init_process_group("gloo")
    train_ddp()
    raise AssertionError(f"a rank went on after step {os.environ['ACC_RECORD_STEPS']}")


def check_end():
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"ACC_RECORD": folder, "ACC_RECORD_STEPS": "2", "ACC_RECORD_RANDOM": "keep"}
        run_ranks(2, "steps", preload="torch.distributed")
        _, others = read(folder)
        assert [each["reason"] for each in others["end"]] == ["steps"] * 2 and len(others["step"]) == 4, others["step"]


def main():
    check_sketches()
    check_programs()
    check_random_modes()
    check_end()
    del os.environ["ACC_RECORD"], os.environ["ACC_RECORD_STEPS"]
    for flags in ((), ("--engine", "acc")):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(2, folder, flags=flags)


if __name__ == "__main__":
    if "RANK" not in os.environ:
        main()
    elif sys.argv[1] == "steps":
        train_some_steps()
    else:
        check_on_rank(pathlib.Path(sys.argv[1]))
