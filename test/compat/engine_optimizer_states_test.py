# SPDX-License-Identifier: Apache-2.0
"""engine_optimizer_states_test.py ACCLAUNCH PACKAGE: saves, on two ranks on the engine acc, optimizers whose states do
not have the shapes of parameters: Adafactor, one with a matrix for a side, LBFGS, AdamW in 8 bits of bitsandbytes, if
it is installed; Muon; and all others of torch.optim, each with some parameters of one module. Resumes on one, two and
three ranks, by torch DCP, Accelerate and DeepSpeed. All ranks have the same batches: the losses are those of the run
that goes on. Exits with 77 without torch."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parent / name) for name in ("", "workers")]
from run_ranks import leave_to_ranks  # noqa: E402


def main():
    acclaunch, package = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for ranks, action in ((2, "save"), (1, "load"), (3, "load")):
            run = subprocess.run(
                [acclaunch, "torchrun", "--standalone", "--nproc_per_node", str(ranks), "--engine", "acc", "--preload",
                 "torch._dynamo", os.path.abspath(__file__), folder, action],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
                                  "PYTHON_EXEC": sys.executable, "ACCELERATE_USE_CPU": "true",
                                  "OMP_NUM_THREADS": "1"},  # no threads of numpy in a process that forks
                capture_output=True, text=True, timeout=900)
            assert run.returncode == 0 and run.stdout.count("served") == ranks, run.stdout + run.stderr


leave_to_ranks(main)

import torch  # noqa: E402
from engine_optimizers_test import WORDS, Net  # noqa: E402

HAS = {name: importlib.util.find_spec(name) is not None for name in (
    "accelerate", "bitsandbytes", "deepspeed", "transformers")}
BEFORE, AFTER = 2, 2  # steps


class Sided(torch.optim.Optimizer):
    """As SOAP and Shampoo: the sum of the products of a matrix's rows, as a whole tensor on each rank."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                gradient = each.grad.full_tensor() if hasattr(each.grad, "full_tensor") else each.grad
                way = gradient
                state = self.state[each]
                state["step"] = state.get("step", torch.zeros(())) + 1
                if gradient.dim() == 2:
                    rows = gradient.shape[0]
                    side = state.setdefault("side", torch.zeros(rows, rows))
                    side += gradient @ gradient.T
                    way = torch.linalg.solve(side / state["step"] + 0.1 * torch.eye(rows), gradient)
                if hasattr(each, "full_tensor"):
                    from torch.distributed.tensor import distribute_tensor
                    way = distribute_tensor(way, each.device_mesh, each.placements)
                each.sub_(way, alpha=group["lr"])


# Each has some parameters; fused ones also load before the first forward.
EACH = (("ASGD", {"lr": 1e-2, "t0": 1, "weight_decay": 0.1}), ("Adadelta", {"lr": 0.5}),
        ("Adagrad", {"lr": 1e-2, "lr_decay": 0.1, "fused": True}),
        ("Adam", {"lr": 1e-2, "amsgrad": True, "fused": True}), ("AdamW", {"lr": torch.tensor(1e-2)}),
        ("Adamax", {"lr": 1e-2}), ("NAdam", {"lr": 1e-2}),
        ("RAdam", {"lr": 1e-2}), ("RMSprop", {"lr": 1e-3, "momentum": 0.5, "centered": True}), ("Rprop", {"lr": 1e-2}),
        ("SGD", {"lr": 5e-2, "momentum": 0.9, "nesterov": True, "fused": True}))


class Each(list):
    """Optimizers that share the parameters of a module."""

    def __init__(self, parameters):
        parameters = list(parameters)
        super().__init__(getattr(torch.optim, name)(parameters[number::len(EACH)], **options)
                         for number, (name, options) in enumerate(EACH))

    def zero_grad(self):
        for each in self:
            each.zero_grad()

    def step(self):
        for each in self:
            each.step()


def optimizers():
    yield "each of torch.optim", Each
    yield "Adafactor", lambda parameters: torch.optim.Adafactor(parameters, lr=3e-2, weight_decay=0.1)
    yield "Muon", muon
    yield "Sided", Sided
    if HAS["bitsandbytes"]:
        from bitsandbytes.optim import AdamW8bit
        yield "AdamW8bit", lambda parameters: AdamW8bit(parameters, lr=1e-2, min_8bit_size=1)
    if HAS["transformers"]:
        from transformers.optimization import Adafactor
        yield "Adafactor of transformers", lambda parameters: Adafactor(parameters, lr=1e-2, beta1=0.9,
                                                                        relative_step=False, scale_parameter=False)


def muon(parameters):
    """Of all matrices; the other parameters keep their values."""
    return torch.optim.Muon([each for each in parameters if each.dim() == 2], lr=2e-2)


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, history_size=4)


# ---- ways to save: functions (net, optimizer, path) that save, and that load ---------------------------------------


def listed(optimizer):
    return optimizer if isinstance(optimizer, Each) else [optimizer]


def dcp_save(net, optimizer, path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, state = get_state_dict(net, optimizer)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=path)


def dcp_load(net, optimizer, path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    model, state = get_state_dict(net, optimizer)
    dcp.load({"model": model, "optimizer": state}, checkpoint_id=path)
    set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=state)


def whole_save(net, optimizer, path):
    """Full state dicts of FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        found = {"model": net.state_dict(),
                 "optimizers": [FullyShardedDataParallel.optim_state_dict(net, each) for each in listed(optimizer)]}
    if torch.distributed.get_rank() == 0:
        torch.save(found, path)


def whole_load(net, optimizer, path):
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    found = torch.load(path, weights_only=False)
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        net.load_state_dict(found["model"])
        for each, state in zip(listed(optimizer), found["optimizers"]):
            each.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(net, each, state))


def plain_save(net, optimizer, path):
    """The optimizer's own state dict, which has nothing of a rank; weights as DTensors."""
    weights = {name: value.full_tensor() for name, value in net.state_dict().items()}
    if torch.distributed.get_rank() == 0:
        torch.save({"model": weights, "optimizer": optimizer.state_dict()}, path)


def plain_load(net, optimizer, path):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    found = torch.load(path, weights_only=False)
    set_model_state_dict(net, found["model"], options=StateDictOptions(full_state_dict=True))
    optimizer.load_state_dict(found["optimizer"])


def accelerate_save(net, optimizer, path):
    net.accelerator.save_state(path)


def accelerate_load(net, optimizer, path):
    net.accelerator.load_state(path)


def deepspeed_save(net, optimizer, path):
    net.save_checkpoint(path)


def deepspeed_load(net, optimizer, path):
    net.load_checkpoint(path)


# ---- trainings ----------------------------------------------------------------------------------------------------


def made(kind, make):
    torch.manual_seed(3)
    net = Net()
    # Factors of one element; in stage 0 a parameter with the shape of its scale in 8 bits.
    net.scale = torch.nn.Parameter(torch.ones((1,) if kind == "ZeRO 0" else (1, 1)))
    if kind == "accelerate":
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]))
        net, optimizer = accelerator.prepare(net, make(net.parameters()))
        net.accelerator = accelerator
        return net, optimizer
    if kind.startswith("ZeRO"):
        import deepspeed
        import plain_muon  # noqa: F401
        net, optimizer, *_ = deepspeed.initialize(model=net, optimizer=make(net.parameters()), config={
            "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": int(kind[-1])},
            "zero_allow_untested_optimizer": True})
        return net, optimizer
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    if kind == "whole":
        for number, block in enumerate(net.blocks):
            net.blocks[number] = FullyShardedDataParallel(block, use_orig_params=True)
        net = FullyShardedDataParallel(net, use_orig_params=True)
    else:
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    return net, make(net.parameters())


def losses(net, optimizer, steps):
    found = []
    for step in steps:
        ids = torch.randint(WORDS, (4, 5), generator=torch.Generator().manual_seed(step))

        def closure():
            optimizer.zero_grad()
            loss = net(ids)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            found.append(float(optimizer.step(closure)))
        elif hasattr(net, "load_checkpoint"):  # DeepSpeed's engine
            loss = net(ids)
            net.backward(loss)
            net.step()
            found.append(float(loss))
        else:
            found.append(float(closure()))
            optimizer.step()
    return found


WAYS = {"dcp": (dcp_save, dcp_load), "whole": (whole_save, whole_load), "plain": (plain_save, plain_load),
        "accelerate": (accelerate_save, accelerate_load),
        **{f"ZeRO {stage}": (deepspeed_save, deepspeed_load) for stage in (0, 1, 3)}}


def cases():
    yield "plain", "LBFGS", lbfgs
    for name, make in optimizers():
        yield "dcp", name, make
        if name not in ("Sided", "AdamW8bit"):
            yield "whole", name, make
        if name in ("Adafactor", "Muon") and HAS["accelerate"]:
            yield "accelerate", name, make
        if name == "Muon" and HAS["deepspeed"]:
            yield "ZeRO 1", name, make
            yield "ZeRO 3", name, make
        if name in ("Adafactor", "AdamW8bit") and HAS["deepspeed"]:
            yield "ZeRO 0", name, make


def faults(folder, saves):
    """Lines about the cases that do not resume, in this process too if it saves."""
    for way, name, make in cases():
        path = f"{folder}/{way} {name}"
        save, load = WAYS[way]
        try:
            if saves:
                net, optimizer = made(way, make)
                losses(net, optimizer, range(BEFORE))
                save(net, optimizer, path)
                following = losses(net, optimizer, range(BEFORE, BEFORE + AFTER))
                if torch.distributed.get_rank() == 0:
                    torch.save(following, f"{path}.losses")
                torch.distributed.barrier()
            net, optimizer = made(way, make)
            load(net, optimizer, path)
            found, expected = losses(net, optimizer, range(BEFORE, BEFORE + AFTER)), torch.load(f"{path}.losses")
            if any(abs(a - b) > 5e-6 for a, b in zip(found, expected)):
                yield f"{way}, {name}: {found}, expected {expected}"
        except Exception as error:  # the others still run
            yield f"{way}, {name}: {type(error).__name__}: {str(error)[:300]}"


def worker(folder, action):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = list(faults(folder, action == "save"))
    for line in found:
        print(line, flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print("different" if found else "served", flush=True)


if __name__ == "__main__":
    worker(*sys.argv[1:])
