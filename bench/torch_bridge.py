# SPDX-License-Identifier: Apache-2.0
"""Trains one PyTorch module with acclaunch.torch, acc::torch (variants "c++", which need a build with
LibTorch), FSDP2 on the engine acc, FSDP2, FSDP1 and DDP over Gloo, FSDP2 and DDP over the back end acc, and
alone (plain torch without communication). All variants live in the same processes and make their steps in turn,
with the same data and kernels and one thread per worker. Prints medians of times, and of the largest CPU time of a worker,
which other programs on the machine change less, with ratios to FSDP2 over Gloo, to "alone" and of "… over acc" to the same
over Gloo, and, with --memory, the memory of all workers (PSS, largest sample
during steps, above that after the import of torch) of each variant in processes of its own. With --hooks it prints what
the engines add to the forward and to the backward of a tiny unit, in one process.

    python bench/torch_bridge.py [--steps 20] [--memory] [--hooks] [--acclaunch build/release/bin/acclaunch]
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import threading
import time

from names import some_of
from workers import found_by

ROOT = pathlib.Path(__file__).absolute().parents[1]
# Shapes of bench/train.py: 23 and 4 million parameters.
CASES = {
    "large": dict(workers=2, layers=6, dim=512, heads=8, vocab=8192, positions=256, rows=2),
    "small": dict(workers=4, layers=4, dim=256, heads=8, vocab=4096, positions=128, rows=2),
}
OVER_ACC = " over acc"
ENGINE = "fsdp2 on engine acc"
VARIANTS = ("alone", "fsdp2", ENGINE, "fsdp1", "ddp", "fsdp2" + OVER_ACC, "ddp" + OVER_ACC, "acc FULL_SHARD",
            "acc SHARD_GRAD_OP", "c++ FULL_SHARD", "c++ SHARD_GRAD_OP")
WARMUP = 2


def make_cpp_variant(strategy, case):
    """The module of examples/train_torch, in this process."""
    library = ctypes.CDLL(os.environ["BENCH_LIBRARY"])
    library.bench_make.restype = ctypes.c_void_p
    library.bench_step.restype = ctypes.c_double
    os.environ["FSDP_SHARDING_STRATEGY"] = strategy
    made = ctypes.c_void_p(library.bench_make(*(ctypes.c_int64(case[key]) for key in (
        "vocab", "positions", "dim", "layers", "heads"))))
    return lambda tokens: library.bench_step(made, ctypes.c_void_p(tokens.data_ptr()),
                                             *map(ctypes.c_int64, tokens.shape))


def make_variant(name, case, parts=False):
    """Returns a function that makes a step with tokens, [rows, positions + 1]; with `parts` also the module and the
    optimizer."""
    if name.startswith("c++ "):
        return make_cpp_variant(name[4:], case)
    import torch
    import torch.distributed as dist
    from train_gpt import GPT, Block

    group = dist.new_group(backend="acc") if name.endswith(OVER_ACC) else dist.group.WORLD
    torch.manual_seed(0)
    model = GPT(case["vocab"], case["positions"], case["dim"], case["layers"], case["heads"])
    if name.startswith("acc "):
        import acclaunch.torch as acc

        os.environ["FSDP_SHARDING_STRATEGY"] = name[4:]
        acc.fully_shard(model, acc.Runtime())
        optimizer = acc.AdamW(model, lr=1e-4)
    elif name.startswith("fsdp2"):
        from torch.distributed.device_mesh import DeviceMesh
        if name == ENGINE:
            from acclaunch._fsdp2 import fully_shard
        else:
            from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        for block in model.transformer["h"]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif name == "fsdp1":
        import functools

        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True,
                                         device_id=torch.device("cpu"))
    elif name.startswith("ddp"):
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    if not name.startswith("acc "):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return (step, model, optimizer) if parts else step


def pss():
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class Peak(threading.Thread):
    """Samples the PSS of this process; `peak` is the largest sample."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0
        self.start()

    def run(self):
        while True:
            self.peak = max(self.peak, pss())
            time.sleep(0.02)


def worker(case_name, variants, steps, samples):
    import torch
    import torch.distributed as dist

    sys.path.append(str(ROOT / "examples" / "python"))
    case = CASES[case_name]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    before, peak = pss(), None
    made = {name: make_variant(name, case) for name in variants}
    times, cpu, losses = {name: [] for name in variants}, {name: [] for name in variants}, {}
    for number in range(WARMUP + steps):
        if samples and number == WARMUP:
            peak = Peak()  # of the steps, without the making of the module
        generator = torch.Generator().manual_seed(number * 1000 + rank)
        tokens = torch.randint(case["vocab"], (case["rows"], case["positions"] + 1),
                               generator=generator)
        for name, step in made.items():
            dist.barrier()
            start = time.perf_counter(), time.process_time()
            losses[name] = step(tokens)
            # A step ends when its slowest rank has ended it.
            taken = torch.tensor([time.perf_counter() - start[0], time.process_time() - start[1]])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if number >= WARMUP:
                times[name].append(taken[0].item())
                cpu[name].append(taken[1].item())
    grown = torch.tensor(float(peak.peak - before if peak else 0))
    dist.all_reduce(grown)
    if rank == 0:
        print(json.dumps({"times": times, "cpu": cpu, "losses": losses, "pss": grown.item()}), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's threads of Gloo may abort the process at its regular exit


def time_of_hooks(steps):
    """Microseconds of CPU time that each engine adds to a use of a unit, a linear layer with 8 inputs, [median, least]: of
    the slope over the number of units. Other programs on the machine change the least ones less."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from acclaunch._fsdp2 import fully_shard as on_engine

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))

    def step_of(shard, units):
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(units)))
        if shard:
            for each in model:
                shard(each, mesh=mesh)
            shard(model, mesh=mesh)
        inputs = torch.ones(1, 8)

        def step():
            start = time.process_time()
            model(inputs).sum().backward()
            return time.process_time() - start
        return step

    few, many = 4, 36
    made = {name: (step_of(shard, few), step_of(shard, many)) for name, shard in (
        ("plain", None), ("fsdp2", fully_shard), (ENGINE, on_engine))}
    slopes = {name: [] for name in made}
    for number in range(WARMUP + steps):
        for name, (small, large) in made.items():
            taken = large() - small()
            if number >= WARMUP:
                slopes[name].append(taken / (many - few) / 2)
    found = {name: (statistics.median(each), min(each)) for name, each in slopes.items()}
    plain = found.pop("plain")
    print(json.dumps({name: [1e6 * (one - other) for one, other in zip(each, plain)] for name, each in found.items()}))


def library_of(args):
    return pathlib.Path(args.acclaunch).absolute().parents[1] / "lib" / "libtorch_bridge_cpp.so"


def run(args, case_name, variants, steps, samples=False):
    """samples: measures memory. Freed blocks then go back to the system at once: glibc would keep blocks
    up to 32 MiB, of all variants alike."""
    command = [args.acclaunch, "--cpu", "--use_fsdp", "--fsdp_sync_module_states", "true",
               "--num_processes", str(CASES[case_name]["workers"]), "--main_process_port", "0",
               sys.executable, os.path.abspath(__file__), "--worker", case_name, "--steps",
               str(steps), "--variants", ",".join(variants), *["--memory"] * samples]
    return found_by(command, args.acclaunch, BENCH_LIBRARY=str(library_of(args)),
                    **{"MALLOC_MMAP_THRESHOLD_": "131072"} if samples else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--acclaunch", default=str(ROOT / "build/release/bin/acclaunch"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cases", default=list(CASES), type=some_of(CASES))
    parser.add_argument("--variants", type=some_of(VARIANTS), help="default: all that were built")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--hooks", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    built = [name for name in VARIANTS if library_of(args).exists() or not name.startswith("c++")]
    variants = args.variants or built
    if missing := [name for name in variants if name not in built]:
        parser.error(f"--variants {','.join(missing)}: {library_of(args)} was not built, which needs LibTorch")
    if args.worker and args.hooks:
        time_of_hooks(args.steps)
        return
    if args.worker:
        worker(args.worker, variants, args.steps, args.memory)
    for case_name in args.cases:
        case = CASES[case_name]
        found = run(args, case_name, variants, args.steps)
        medians, cpu = ({name: statistics.median(each) for name, each in found[what].items()}
                        for what in ("times", "cpu"))
        tokens = case["workers"] * case["rows"] * case["positions"]
        print(f"{case_name}: {case['workers']} workers, dim {case['dim']}, {case['layers']} layers, "
              f"{args.steps} steps of each variant in turn")
        for name, median in medians.items():
            line = f"  {name:19} {1e3 * median:8.1f} ms {tokens / median:8.0f} tokens/s"
            peers = ["fsdp2", "alone", *["ddp"] * name.startswith("ddp ")]
            for peer in peers:
                if peer in medians:
                    line += f"  {medians[peer] / median:5.2f} x {peer}"
            line += f"  CPU {1e3 * cpu[name]:7.1f} ms"
            for peer in peers:
                if peer in cpu:
                    line += f"  {cpu[peer] / cpu[name]:5.2f} x {peer}"
            if args.memory:
                line += f"  {run(args, case_name, [name], 3, True)['pss'] / 2**20:7.0f} MiB"
            print(line, flush=True)
    if args.hooks:
        command = [sys.executable, os.path.abspath(__file__), "--worker", "hooks", "--hooks", "--steps", "200"]
        found = found_by(command, args.acclaunch)
        print("hooks:", ", ".join(f"{name} {median:.0f} µs per use of a unit (least {least:.0f})"
                                  for name, (median, least) in found.items()))


if __name__ == "__main__":
    main()
