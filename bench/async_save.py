# SPDX-License-Identifier: Apache-2.0
"""Stall of the training by a save, and speed of the training beside it, compared with torch.

    python bench/async_save.py [--bin build/release/bin] [--python PYTHON] [--package build/release/python]
                               [--dir DIR]... [--processes N] [--layers L] [--width W] [--rounds R]
                               [--saves S] [--steps STEPS] [--impls "acclaunch,Accelerate,DeepSpeed,FSDP 2,torch"]

For each DIR (results differ between a tmpfs and a disk), with two processes on the CPU, trains the same
MLP (by default 23 M parameters, AdamW, fp32) with acclaunch.torch, with Accelerate (FSDP 2), DeepSpeed (ZeRO 2) and a
program of torch's FSDP 2 under --engine acc, and with torch, one after the other in each round, and measures for each:
the time of a step; of a save for which the training waits (runtime.save; save_state and save_checkpoint without
save_async; torch.distributed.checkpoint.save); the time until save_async, save_state and save_checkpoint with
save_async, and dcp.async_save return (the stall); the time until the checkpoint is complete; and the steps that are
made meanwhile, as a factor of the time of a step without a save. The CPU time of a step, and that of a save (of the
whole process meanwhile, less that of as many steps) are steady on a machine that does other work too; where all cores
are busy, a save delays the training by its CPU time. "of CPU" is the stall as a part of the save in CPU time of the
thread that trains. For acclaunch also the stall of a snapshot in memory (memory_checkpoint_every), and the time of a
step with one after each. Values are medians of the rounds on rank 0. dcp.async_save has a process group of its own, as
torch asks for, and its state dict is made as for dcp.save. Prints lines of JSON, then a table.
"""
import collections
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from launchers import free_port, json_lines
from names import BIN, Options

HERE = os.path.abspath(__file__)


def make_net(width, layers):
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))


class Ours:
    def __init__(self, width, layers):
        import acclaunch.torch as acc

        self.runtime = acc.Runtime()
        self.net = acc.fully_shard(make_net(width, layers), self.runtime)
        self.optimizer = acc.AdamW(self.net, lr=1e-4)
        self.series = acc.CheckpointSeries(self.runtime, os.path.join(tempfile.gettempdir(), "acc-bench-series"))
        self.rank = self.runtime.rank
        self.barrier = self.runtime.barrier

    def step(self, x):
        self.optimizer.scale(self.net(x).square().mean()).backward()
        self.optimizer.step()

    def save(self, folder):
        self.runtime.save(folder, self.net, self.optimizer)

    def save_async(self, folder):
        self.runtime.save_async(folder, self.net, self.optimizer)

    def saving(self):
        return self.runtime.saving

    def keep(self):
        assert self.series.keep_in_memory(self.net, self.optimizer)

    def any(self, value):
        return self.runtime.mean(float(value)) > 0

    def wait(self):
        self.runtime.wait_save()


class Engine:
    """A program under --engine acc --save_async."""

    def saved(self, folder, is_beside):
        os.environ["ACC_SAVE_ASYNC"] = str(is_beside).lower()
        self.save_in(folder)

    def save(self, folder):
        self.saved(folder, False)

    def save_async(self, folder):
        self.saved(folder, True)

    def saving(self):
        from acclaunch import _save_async

        return _save_async._in_flight is not None and not _save_async._in_flight.done.is_set()

    def any(self, value):
        return any_rank(value)

    def wait(self):
        from acclaunch import _save_async

        _save_async.wait()


class Accelerate(Engine):
    FLAGS = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
             "--fsdp_transformer_layer_cls_to_wrap", "Sequential", "--fsdp_state_dict_type", "SHARDED_STATE_DICT"]

    def __init__(self, width, layers):
        import torch
        from accelerate import Accelerator

        self.accelerator = Accelerator()
        net = make_net(width, layers)
        self.net, self.optimizer = self.accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4))
        self.rank = self.accelerator.process_index
        self.barrier, self.save_in = self.accelerator.wait_for_everyone, self.accelerator.save_state

    def step(self, x):
        self.accelerator.backward(self.net(x).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeed(Engine):
    FLAGS = []

    def __init__(self, width, layers):
        import deepspeed
        import torch.distributed as dist

        deepspeed.utils.logger.setLevel("ERROR")
        net = make_net(width, layers)
        self.engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
            "train_micro_batch_size_per_gpu": 256, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})
        self.rank, self.barrier, self.save_in = dist.get_rank(), dist.barrier, self.engine.save_checkpoint

    def step(self, x):
        self.engine.backward(self.engine(x).square().mean())
        self.engine.step()


def any_rank(value):
    import torch
    import torch.distributed as dist

    flag = torch.tensor(float(value))
    dist.all_reduce(flag)
    return bool(flag)


class Theirs:
    def __init__(self, width, layers):
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
        self.group = dist.new_group(backend="gloo")
        self.net = make_net(width, layers)
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.net:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.rank = dist.get_rank()
        self.barrier = dist.barrier

    def step(self, x):
        self.net(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.net, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, folder):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(), checkpoint_id=folder)

    def save_async(self, folder):
        import torch.distributed.checkpoint as dcp

        self.future = dcp.async_save(self.state(), checkpoint_id=folder, process_group=self.group)

    def saving(self):
        return not self.future.done()

    def any(self, value):
        return any_rank(value)

    def wait(self):
        self.future.result()


class Sharded(Theirs):
    """The same program as that of torch, under --engine acc."""
    FLAGS = []


SIDES = {"acclaunch": Ours, "Accelerate": Accelerate, "DeepSpeed": DeepSpeed, "FSDP 2": Sharded, "torch": Theirs}


def worker(impl, folder, width, layers, saves, step_count):
    import torch

    torch.set_num_threads(1)
    side = SIDES[impl](width, layers)
    x = torch.randn(256, width)

    def timed(function, *arguments, cpu=None):
        side.barrier()
        begin, own = time.perf_counter(), time.thread_time()
        function(*arguments)
        if cpu is not None:
            cpu.append(time.thread_time() - own)
        return time.perf_counter() - begin

    def steps(count):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            side.step(x)
            times.append(time.perf_counter() - begin)
        return times

    steps(3)
    found = collections.defaultdict(list)
    timed(side.save, f"{folder}/first")
    timed(side.save_async, f"{folder}/first_beside")  # allocates
    side.wait()
    for number in range(saves):
        begin = time.process_time()
        found["step"] += steps(step_count)
        found["cpu"].append((time.process_time() - begin) / step_count)
        found["save"].append(timed(side.save, f"{folder}/save_{number}", cpu=found["cpu_save"]))
        side.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        found["stall"].append(timed(side.save_async, f"{folder}/beside_{number}", cpu=found["cpu_stall"]))
        beside = []
        while side.any(side.saving()):
            beside += steps(1)
        side.wait()
        found["complete"].append(time.perf_counter() - begin)
        found["beside"].append(beside)
        found["save_cpu"].append(time.process_time() - cpu - len(beside) * found["cpu"][-1])
    if impl == "acclaunch":
        for _ in range(3 + step_count):
            side.barrier()
            begin = time.perf_counter()
            side.step(x)
            found["keep"].append(timed(side.keep))
            found["step_keep"].append(time.perf_counter() - begin)
    if side.rank == 0:
        middle = statistics.median(found["step"])
        during = [sum(times) / len(times) for times in found["beside"] if times]
        print(json.dumps({"impl": impl, "step_s": round(middle, 4),
                          "save_s": round(statistics.median(found["save"]), 4),
                          "stall_s": round(statistics.median(found["stall"]), 4),
                          "save_thread_s": round(statistics.median(found["cpu_save"]), 4),
                          "stall_thread_s": round(statistics.median(found["cpu_stall"]), 4),
                          "complete_s": round(statistics.median(found["complete"]), 4),
                          "steps_beside": round(statistics.median(len(times) for times in found["beside"]), 1),
                          "step_beside_s": round(statistics.median(during), 4) if during else None,
                          "step_cpu_s": round(statistics.median(found["cpu"]), 4),
                          "save_cpu_s": round(statistics.median(found["save_cpu"]), 4),
                          "memory_stall_s": round(statistics.median(found["keep"][3:]), 4) if found["keep"] else None,
                          "step_memory_s": round(statistics.median(found["step_keep"][3:]), 4)
                          if found["keep"] else None}), flush=True)
    side.barrier()


def run(args, impl, folder):
    script = [args.python, HERE, "--worker", impl, folder, *map(str, (args.width, args.layers, args.saves, args.steps))]
    if impl == "acclaunch":
        command = [os.path.join(args.bin, "acclaunch"), "--cpu", "--num_processes", str(args.processes), "--use_fsdp",
                   "--fsdp_version", "2", "--memory_checkpoint_every", "1", "--no_python", *script]
    elif hasattr(SIDES[impl], "FLAGS"):
        command = [os.path.join(args.bin, "acclaunch"), "--engine", "acc", "--save_async", "--cpu", "--num_processes",
                   str(args.processes), *SIDES[impl].FLAGS, "--no_python", *script]
    else:
        command = [args.python, "-m", "torch.distributed.run", "--nproc-per-node", str(args.processes), "--master-port",
                   str(free_port()), *script[1:]]
    return json_lines(command, PYTHONPATH=str(args.package), OMP_NUM_THREADS="1")[-1]


def main():
    parser = Options(__doc__, bin=BIN, package=BIN.parent / "python", python=sys.executable, processes=2, layers=22,
                     width=1024, rounds=3, saves=3, steps=8, impls=list(SIDES))
    parser.add_argument("--dir", action="append")
    args = parser.parse_args()
    for where in args.dir or [tempfile.gettempdir()]:
        rows = collections.defaultdict(list)
        for _ in range(args.rounds):
            for impl in args.impls:
                folder = tempfile.mkdtemp(dir=where)
                try:
                    rows[impl].append(run(args, impl, folder))
                finally:
                    shutil.rmtree(folder)
                print(json.dumps({"dir": where, **rows[impl][-1]}), flush=True)
        print(f"\n{where}, {args.processes} processes, {args.layers} layers of {args.width}:")
        print(f"{'':<10} {'step s':>8} {'save s':>8} {'stall s':>8} {'stall/save':>11} {'of CPU':>7} "
              f"{'complete s':>11} {'steps beside':>13} {'slower':>8} {'step CPU s':>11} {'save CPU s':>11} "
              f"{'memory stall s':>15} {'memory step s':>14}")
        for impl, lines in rows.items():
            def middle(key):
                values = [line[key] for line in lines if line[key] is not None]
                return statistics.median(values) if values else float("nan")
            print(f"{impl:<10} {middle('step_s'):8.4f} {middle('save_s'):8.4f} {middle('stall_s'):8.4f} "
                  f"{middle('stall_s') / middle('save_s'):11.1%} "
                  f"{middle('stall_thread_s') / middle('save_thread_s'):7.0%} {middle('complete_s'):11.3f} "
                  f"{middle('steps_beside'):13.0f} {middle('step_beside_s') / middle('step_s') - 1:8.1%} "
                  f"{middle('step_cpu_s'):11.3f} {middle('save_cpu_s'):11.3f} "
                  f"{middle('memory_stall_s'):15.4f} {middle('step_memory_s'):14.4f}")
        print(flush=True)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main()
