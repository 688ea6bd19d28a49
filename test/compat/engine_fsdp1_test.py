# SPDX-License-Identifier: Apache-2.0
"""engine_fsdp1_test.py ACCLAUNCH PACKAGE: one program that trains with torch's FullyShardedDataParallel, on torch's
engine and on the engine acc. Losses, norms, weights and state dicts must be equal, and each resumes from the other's
files. Exits with 77 without torch."""

import functools
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types
import warnings

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
from run_ranks import leave_to_ranks, run_ranks  # noqa: E402


def main():
    with tempfile.TemporaryDirectory() as folder:
        for ranks, engine, part in ((2, "torch", "all"), (2, "acc", "all"), (2, "torch", "back"), (4, "torch", "all"),
                                    (4, "acc", "all")):
            run = run_ranks(ranks, folder, part, flags=("--engine", engine))
            for strategy in {2: ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"), 4: ("FULL_SHARD",)}[ranks]:
                assert (f"sets mixed_precision no, fsdp_version 1, sharding_strategy {strategy};" in run.stderr) == (
                    engine == "acc"), run.stderr
            assert run.stdout.count("compared") == ranks, run.stdout


leave_to_ranks(main)

import engine_test  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp
from engine_test import SIZE, WORDS, Block, Net, adamw, expect_equal, loss_of
from expect_error import expect  # noqa: E402
from leave import leave  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import (FullOptimStateDictConfig, FullStateDictConfig, MixedPrecision, ShardingStrategy,
                                    StateDictType)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import (CustomPolicy, ModuleWrapPolicy, always_wrap_policy, enable_wrap,
                                         lambda_auto_wrap_policy, size_based_auto_wrap_policy,
                                         transformer_auto_wrap_policy, wrap)
from torch.distributed.tensor import DTensor

OURS = os.environ.get("ACC_ENGINE") == "acc"
if OURS:
    from acclaunch import _engine, _save_async
    from acclaunch._library import InvalidArgumentError, NotSupportedError
else:  # torch's FSDP reuses memory whose values it means to have copied to a CPU
    torch.Tensor.cpu = torch.Tensor.clone
CPU = torch.device("cpu")


class Trial(engine_test.Trial):
    """One training. arguments: those of FullyShardedDataParallel."""

    def __init__(self, **arguments):
        super().__init__(None, None, {"auto_wrap_policy": ModuleWrapPolicy([Block]), "use_orig_params": True,
                                      "device_id": CPU, **arguments})
        del self.arguments["mesh"]

    def sharded(self, net, **arguments):
        return FSDP(net, **{**self.arguments, **arguments})

    def note_weights(self, net):
        with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):
            super().note_weights(net)

    def step(self, net, optimizer, **keywords):
        loss = loss_of(net, self.ids(), **keywords)
        loss.backward()
        self.note(loss, net.clip_grad_norm_(0.5))
        optimizer.step()
        optimizer.zero_grad()

    def steps(self, net, count=2, **keywords):
        optimizer = adamw(net)
        for _ in range(count):
            self.step(net, optimizer, **keywords)
        self.note_weights(net)
        return optimizer


def filled(net):
    """Without frozen parameters in units, which torch's flat parameters cannot have, and with rows for each rank,
    without which torch cannot load its own files."""
    for each in net.blocks:
        del each.empty
        each.scale, each.empty = nn.Parameter(torch.ones(SIZE)), torch.zeros(())
    return net


# ---- cases ----------------------------------------------------------------------------------------

def strategies(trial):
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        for use_orig_params in (True, False):
            net = trial.sharded(filled(Net()), sharding_strategy=strategy, use_orig_params=use_orig_params)
            trial.steps(net, rare=True)


def policies(trial):
    def is_block(module):
        return isinstance(module, Block)

    for policy in (functools.partial(size_based_auto_wrap_policy, min_num_params=100), always_wrap_policy,
                   functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
                   functools.partial(lambda_auto_wrap_policy, lambda_fn=is_block), CustomPolicy(is_block)):
        net = trial.sharded(Net(tied=False), auto_wrap_policy=policy)
        trial.note(len(FSDP.fsdp_modules(net)), len(FSDP.fsdp_modules(net, root_only=True)), net.check_is_root())
        trial.steps(net, 1)


def by_hand(trial):
    """Wrappers in and around wrappers; attributes and items of a wrapped module; a parameter in another layout."""
    net = Net(tied=False)
    net.head.weight.data = net.head.weight.data.t().contiguous().t()
    with enable_wrap(wrapper_cls=FSDP, device_id=CPU, use_orig_params=True):
        net.blocks[0] = wrap(net.blocks[0])
        net.blocks[0].up = wrap(net.blocks[0].up)
        net.blocks[2].down = wrap(nn.Sequential(net.blocks[2].down, nn.Identity()))
    trial.note(net.blocks[0].module is net.blocks[0]._fsdp_wrapped_module,
               isinstance(net.blocks[0], FSDP), net.blocks[2].down[0].out_features, hasattr(net.blocks[0], "recompute"))
    net = FSDP(FSDP(net, device_id=CPU, use_orig_params=True), device_id=CPU, use_orig_params=True).to("cpu")
    trial.steps(net)
    trial.steps(net.cpu().float())


def accumulation(trial):
    net = trial.sharded(Net())
    optimizer = adamw(net)
    for sync in (True, False, True):
        for micro_step in range(2):
            loss = None
            if micro_step == 0 and not sync:
                with net.no_sync():
                    # That of an optimizer without frozen parameters has no effect in torch.
                    for drop in (net.zero_grad, optimizer.zero_grad if OURS else net.zero_grad, lambda: None):
                        loss = loss_of(net, trial.ids()) / 2
                        loss.backward()
                        drop()
            else:
                loss = loss_of(net, trial.ids()) / 2
                loss.backward()
            trial.note(loss)
        trial.note(net.clip_grad_norm_(0.3, float("inf") if sync else 2.0))
        optimizer.step()
        optimizer.zero_grad()
    trial.note_weights(net)


def low_precision(trial):
    low = torch.bfloat16
    for policy in (MixedPrecision(param_dtype=low), MixedPrecision(param_dtype=low, reduce_dtype=torch.float32,
                                                                   buffer_dtype=low, cast_forward_inputs=True)):
        net = Net()
        net.statistics = nn.BatchNorm1d(SIZE)  # keeps its precision, in a wrapper of its own
        net = trial.sharded(net, mixed_precision=policy)
        trial.steps(net)
        trial.note(net.seen.dtype is low, net.state_dict()["seen"].dtype is torch.float32,
                   net.statistics.running_mean.dtype is torch.float32)


def widened(trial):
    """Accelerate makes the flat parameters of a model in low precision float32."""
    net = trial.sharded(Net(tied=False).bfloat16(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    for each in FSDP.fsdp_modules(net):
        flat = each._flat_param
        if each._has_params and flat.dtype is not torch.float32 and flat.requires_grad:
            flat.data = flat.data.to(torch.float32)
            each._handle._orig_param_dtype = torch.float32
    trial.steps(net)
    trial.note(net.state_dict()["head.weight"].dtype is torch.float32)


def ignored(trial):
    for name in ("ignored_modules", "ignored_states"):
        net = Net(tied=False)
        net.head.requires_grad_(False)  # it would have another gradient on each rank
        kept = [net.head] if name == "ignored_modules" else list(net.head.parameters())
        net = trial.sharded(net, **{name: kept})
        trial.steps(net)
        trial.note(net.head.weight.shape == (WORDS, SIZE))


def made_empty(trial):
    def fill(module):
        module.to_empty(device=CPU, recurse=False)
        with torch.no_grad():
            for number, each in enumerate([*module.parameters(recurse=False), *module.buffers(recurse=False)]):
                each.fill_(0.01 * number + 0.02)

    with torch.device("meta"):
        net = Net(tied=False)
    trial.steps(trial.sharded(net, param_init_fn=fill))
    net = nn.Sequential(nn.LayerNorm(SIZE, device="meta"))  # which has reset_parameters
    net = trial.sharded(net, auto_wrap_policy=None)
    trial.note(net(torch.ones(2, SIZE)).sum())


def from_rank_0(trial):
    """Torch's needs a GPU for sync_module_states."""
    torch.manual_seed(7 + OURS * dist.get_rank())
    net = Net(tied=False)
    net.seen += OURS * dist.get_rank()
    trial.steps(trial.sharded(net, sync_module_states=OURS))


def optimizer_before(trial):
    """An optimizer and a list of parameters from before, by which one is frozen and gradients are clipped."""
    for make in (lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5), adamw):
        net = Net()
        optimizer, kept = make(net), [each for each in net.parameters() if each.requires_grad]
        net = trial.sharded(net)
        for number in range(2):
            optimizer.zero_grad()
            kept[0].requires_grad_(number == 0)
            loss = loss_of(net, trial.ids())
            loss.backward()
            nn.utils.clip_grad_value_(kept, 0.01)
            optimizer.step()
            trial.note(loss)
        trial.note_weights(net)
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters())
    trial.sharded(net)
    assert optimizer._params is optimizer.param_groups[0]["params"]  # it updates the first list


def checkpoints_activations(trial):
    net = trial.sharded(Net())
    apply_activation_checkpointing(net, check_fn=lambda module: isinstance(module, Block))
    trial.steps(net)
    trial.note(len(net.state_dict()))


def summoned(trial):
    net = trial.sharded(Net())
    optimizer = trial.steps(net)
    loss_of(net, trial.ids()).backward()
    with FSDP.summon_full_params(net, with_grads=True):
        for name, each in net.named_parameters():
            trial.note("_fsdp" in name, each.numel(), each.detach().square().sum(),
                       -1 if each.grad is None or each.numel() == 0 else each.grad.square().sum())
        with torch.no_grad():
            net.head.weight.mul_(1.5)
            for each in net.blocks[1].parameters():
                each.add_(0.01)
                if each.grad is not None:
                    each.grad.mul_(0.5)
    optimizer.step()
    optimizer.zero_grad()
    trial.note_weights(net)
    with FSDP.summon_full_params(net, writeback=False), torch.no_grad():
        for each in net.parameters():
            each.zero_()
    with FSDP.summon_full_params(net, recurse=False):
        trial.note(net.norm.weight.numel())
    fresh = trial.sharded(filled(Net()))
    for _ in range(2):  # before the first forward, too
        with FSDP.summon_full_params(fresh, recurse=False), torch.no_grad():
            trial.note(loss_of(fresh.module, trial.ids()))
        trial.steps(fresh)
    with FSDP.summon_full_params(net, rank0_only=True, writeback=False):
        trial.note(net.norm.weight.sum() if dist.get_rank() == 0 else 0)

    @torch.no_grad()
    def fill(module):
        if isinstance(module, nn.Linear):
            module.weight.copy_(torch.linspace(-0.4, 0.5, module.weight.numel()).sin().view_as(module.weight))

    net.apply(fill)
    trial.steps(net)


def full_configs():
    """Torch's crashes if it offloads to a CPU from a CPU."""
    return FullStateDictConfig(OURS, True), FullOptimStateDictConfig(OURS, True)


def state_dicts(trial):
    net = trial.sharded(filled(Net()))
    optimizer = trial.steps(net, rare=True)
    configs = full_configs()
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, *configs):
        state, moments = net.state_dict(), FSDP.optim_state_dict(net, optimizer)
    trial.note(len(state), len(moments), FSDP.get_state_dict_type(net).state_dict_config.rank0_only)
    trial.note(len(FSDP.full_optim_state_dict(net, optimizer)))
    whole, all_moments = net.state_dict(), FSDP.full_optim_state_dict(net, optimizer, rank0_only=False)
    for name in sorted(all_moments["state"]):
        trial.note(*(all_moments["state"][name][what].sum() for what in ("step", "exp_avg", "exp_avg_sq")))
    trial.step(net, optimizer, rare=True)
    for how in range(4):
        net.load_state_dict(whole)
        if how == 0:
            loaded = FSDP.optim_state_dict_to_load(net, optimizer, all_moments)
        elif how == 1:
            loaded = FSDP.scatter_full_optim_state_dict(moments or None, net, optim=optimizer)
        elif how == 2:
            with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, *configs):
                loaded = FSDP.optim_state_dict_to_load(net, optimizer, moments)
        elif OURS:  # changes nothing; torch's reuses memory here, too
            sharded = FSDP.sharded_optim_state_dict(net, optimizer)
            loaded = FSDP.flatten_sharded_optim_state_dict(sharded, net, optimizer)
        else:
            loaded = optimizer.state_dict()
        optimizer.load_state_dict(loaded)
        trial.step(net, optimizer, rare=True)
    for full in (True, False):
        found = get_state_dict(net, optimizer, options=StateDictOptions(full_state_dict=full))
        trial.step(net, optimizer, rare=True)
        set_state_dict(net, optimizer, model_state_dict=found[0], optim_state_dict=found[1],
                       options=StateDictOptions(full_state_dict=full))
        trial.step(net, optimizer, rare=True)
    some = {name: value for name, value in whole.items() if name != "norm.weight"} | {"more": whole["norm.weight"]}
    missing, unexpected = net.load_state_dict(some, strict=False)
    trial.note(missing == ["norm.weight"], unexpected == ["more"])
    plain = filled(Net())
    plain.load_state_dict(whole)
    keyed = FSDP.rekey_optim_state_dict(all_moments, torch.distributed.fsdp.fully_sharded_data_parallel.
                                        OptimStateKeyType.PARAM_ID, plain, optim=torch.optim.AdamW(plain.parameters()))
    trial.note(len(keyed["state"]))
    trial.note_weights(net)


def scaled(trial):
    net = trial.sharded(Net())
    optimizer = adamw(net)
    scaler = ShardedGradScaler(device="cpu", init_scale=8.0, growth_interval=2)
    for number in range(3):
        loss = loss_of(net, trial.ids())
        if number == 1 and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        net.clip_grad_norm_(0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        trial.note(scaler.get_scale())
    trial.note_weights(net)


def penalised(trial):
    """A penalty on the weights, with a factor of each rank, as without FSDP. Torch's has no whole parameters outside of
    the module."""
    net = trial.sharded(filled(Net()))
    optimizer, factor = adamw(net), 0.02 * (1 + dist.get_rank())
    mean = 0.02 * (1 + dist.get_world_size()) / 2
    for _ in range(3):
        loss = loss_of(net, trial.ids(), rare=True)
        if OURS:
            loss = loss + factor * sum(each.pow(2).sum() + each.norm() for each in net.parameters())
            loss.backward()
        else:
            loss.backward()
            with FSDP.summon_full_params(net, with_grads=True):
                for each in net.parameters():
                    value = each.detach()
                    loss = loss.detach() + factor * (value.square().sum() + value.norm())
                    each.grad += mean * (2 * value + value / value.norm().clamp(min=1e-9))
        trial.note(loss)
        optimizer.step()
        optimizer.zero_grad()
    trial.note_weights(net)


def unwrapped(trial):
    """Forwards of the module in the wrapper, also before all others, as those of generate(), and of a part of it."""
    net = trial.sharded(Net())
    called = net.module if OURS else net
    for _ in range(2):
        with torch.no_grad():
            ids = trial.ids()
            trial.note(called(ids).square().sum())
            if OURS:
                assert torch.equal(net.module.embedding(ids), net.embedding(ids))
        trial.steps(net, 1)
    loss = loss_of(called, trial.ids())
    loss.backward()
    trial.note(loss, net.clip_grad_norm_(0.5))


CASES = {strategies: 1e-5, penalised: 1e-5, unwrapped: 1e-5, policies: 1e-5, by_hand: 1e-5, accumulation: 1e-5,
         low_precision: 1e-2, widened: 1e-2,
         ignored: 1e-5, made_empty: 1e-5, from_rank_0: 1e-5, optimizer_before: 1e-5, checkpoints_activations: 1e-5,
         summoned: 1e-5, state_dicts: 1e-5, scaled: 1e-5}


def groups(trial):
    """On four ranks: HYBRID_SHARD on groups of two."""
    inner = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    outer = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    for strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        net = trial.sharded(Net(), sharding_strategy=strategy, process_group=(inner[rank // 2], outer[rank % 2]))
        trial.steps(net)


CASES_OF_FOUR = {accumulation: 1e-4, penalised: 1e-4, summoned: 1e-4, groups: 1e-4}


# ---- files ----------------------------------------------------------------------------------------

def save(folder, net, optimizer):
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, *full_configs()):
        found = net.state_dict(), FSDP.optim_state_dict(net, optimizer)
        if dist.get_rank() == 0:
            torch.save(found, f"{folder}/full.pt")
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        found = {"model": net.state_dict(), "optimizer": FSDP.optim_state_dict(net, optimizer)}
        dcp.save(found, checkpoint_id=f"{folder}/sharded")
        torch.save(found, f"{folder}/{dist.get_rank()}.pt")


def load(folder, how, net, optimizer):
    if how == "full":
        state, moments = torch.load(f"{folder}/full.pt")
        net.load_state_dict(state)
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(net, optimizer, moments))
        return
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        if how == "sharded":
            for each in optimizer.param_groups[0]["params"]:  # so that there are states
                each.grad = torch.zeros_like(each)
            optimizer.step()
            optimizer.zero_grad()
            state = {"model": net.state_dict(), "optimizer": FSDP.optim_state_dict(net, optimizer)}
            dcp.load(state, checkpoint_id=f"{folder}/sharded")
        else:
            state = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=False)
            if OURS and not isinstance(state["model"]["head.weight"], DTensor):
                torch.manual_seed(7)
                other = Trial().sharded(nn.Linear(SIZE, WORDS + 9), auto_wrap_policy=None)
                expect(InvalidArgumentError, "'weight' is a ShardedTensor of shape [13, 6], of which",
                       lambda: other.load_state_dict({"weight": state["model"]["head.weight"]}))
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(net, optimizer, state["optimizer"]))


def travels(origin, folder):
    """Resumes from the files in `origin`, and writes those of two steps into `folder`. Returns the numbers of the last
    two of four steps, by the origin."""
    found = {}
    for use_orig_params in (True, False):
        name = f"{folder}/{use_orig_params}"
        os.makedirs(name, exist_ok=True)

        def made():
            torch.manual_seed(7)
            trial = Trial(use_orig_params=use_orig_params)
            net = trial.sharded(filled(Net()))
            return trial, net, torch.optim.AdamW(net.parameters(), lr=1e-2)

        def end(trial, net, optimizer):
            trial.found.clear()
            for _ in range(2):
                trial.step(net, optimizer, rare=True)
            trial.note_weights(net)
            return trial.found

        trial, net, optimizer = made()
        for _ in range(2):
            trial.step(net, optimizer, rare=True)
        save(name, net, optimizer)
        generator = trial.generator.get_state()
        found[f"{use_orig_params} straight"] = end(trial, net, optimizer)
        # Torch's loads DTensors only with a device_mesh.
        for how in ("full", "sharded", "pickled")[:3 if OURS or origin.endswith("torch") else 2]:
            trial, net, optimizer = made()
            load(f"{origin}/{use_orig_params}", how, net, optimizer)
            trial.generator.set_state(generator)
            found[f"{use_orig_params} {how}"] = end(trial, net, optimizer)
    return found


def refused():
    def net(**keywords):
        return Trial(**keywords).sharded(Net(tied=False))

    def local():
        with FSDP.state_dict_type(net(), StateDictType.LOCAL_STATE_DICT):
            pass

    def step_in_summon():
        made = net()
        optimizer = adamw(made)
        with FSDP.summon_full_params(made):
            optimizer.step()

    def backward_in_summon():
        made = net()
        with FSDP.summon_full_params(made):
            loss_of(made, torch.zeros(1, 2, dtype=torch.int64)).backward()

    def save_rows():
        from safetensors.torch import save_file
        made = net()
        FSDP.set_state_dict_type(made, StateDictType.SHARDED_STATE_DICT)
        save_file(made.state_dict(), os.devnull)

    def adapters(name):
        functions = types.SimpleNamespace(get_peft_model_state_dict=lambda _: None,
                                          set_peft_model_state_dict=lambda _: None)
        for each, function in vars(functions).items():
            function.__name__ = each
        _engine._serve_peft(functions)
        getattr(functions, name)(net())

    other = types.SimpleNamespace(__name__="of another version", Trainer=type("Trainer", (), {}))
    for serve in (_engine._serve_peft, _engine._serve_safetensors, _engine._serve_optimizer_files,
                  _save_async.serve_trainer):
        serve(other)  # its import must not fail
    assert set(vars(other)) == {"__name__", "Trainer"}
    for name in ("get_peft_model_state_dict", "set_peft_model_state_dict"):
        expect(NotSupportedError, f"{name} under FSDP 1", functools.partial(adapters, name))
    if importlib.util.find_spec("safetensors"):
        expect(InvalidArgumentError, "to save is a DTensor", save_rows)
    expect(NotSupportedError, "register_comm_hook", lambda: net().register_comm_hook(None, lambda *_: None))
    expect(NotSupportedError, "LOCAL_STATE_DICT", local)
    expect(NotSupportedError, "keep_low_precision_grads", lambda: net(
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)))
    expect(NotSupportedError, "over 1 of 2 ranks", lambda: net(process_group=dist.new_subgroups(1)[0]))
    expect(InvalidArgumentError, "AdamW.step() in summon_full_params", step_in_summon)
    expect(InvalidArgumentError, "a backward in", backward_in_summon)


def tied_apart():
    """A parameter of a wrapper and of one around it."""
    ids, found = torch.arange(10).view(2, 5), []
    for wraps in (False, True):
        torch.manual_seed(7)
        trial, net = Trial(sync_module_states=True, auto_wrap_policy=None), Net(tied=True)
        assert net.head.weight is net.embedding.weight
        if wraps:
            net.embedding = trial.sharded(net.embedding)
            net = trial.sharded(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = loss_of(net, ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trial.note(loss)
        found.append(trial.found)
    expect_equal("tied apart", *found, 1e-5)


# ---- processes ------------------------------------------------------------------------------------

def worker(folder, part):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found, cases = {}, {2: CASES, 4: CASES_OF_FOUR}[dist.get_world_size()]
    if part == "back":
        cases = {}
    for case in cases:
        torch.manual_seed(7)
        trial = Trial()
        case(trial)
        found[case.__name__] = trial.found
    own = f"{folder}/{'acc' if OURS else 'torch'}"
    if dist.get_world_size() == 2:
        found["travels"] = travels(f"{folder}/torch" if part != "back" else f"{folder}/acc", own)
        if OURS:
            refused()
            tied_apart()
    # Torch's engine comes first.
    path = pathlib.Path(f"{folder}/{dist.get_world_size()}.{dist.get_rank()}.json")
    if not path.exists():
        path.write_text(json.dumps(found))
    theirs = json.loads(path.read_text())
    for case, tolerance in cases.items():
        expect_equal(case.__name__, found[case.__name__], theirs[case.__name__], tolerance)
    for name, values in found.get("travels", {}).items():
        expect_equal(name, values, theirs["travels"][f"{name.split()[0]} straight"], 1e-5)
    print("compared", flush=True)
    leave()


if __name__ == "__main__":
    worker(*sys.argv[1:])
