# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed on plain CPU tensors: the back end `acc` against Gloo, in the same
processes, interleaved call by call.

    PYTHONPATH=build/release/python python bench/c10d.py [--workers 2,4] [--ops all_reduce,...]
                                        [--from-bytes 4096] [--to-bytes 67108864] [--budget-s 1]

One thread per worker. `bytes` is the size of the whole tensor (of the larger one of input and output).
Each figure is the median over calls of the slowest rank's time. The ratio is Gloo's time divided by
acc's.
"""
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import acclaunch.c10d  # noqa: F401
from launchers import free_port
from names import Options

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv",
       "barrier")


def call_of(op, nbytes, rank, world, group):
    whole = torch.ones(max(world, nbytes // 4 // world * world))
    part = torch.ones(whole.numel() // world)
    other = torch.ones_like(whole)

    def send_recv():
        # There and back, so that both sides' clocks see the whole transfer.
        if rank == 0:
            dist.send(whole, 1, group=group)
            dist.recv(other, 1, group=group)
        elif rank == 1:
            dist.recv(other, 0, group=group)
            dist.send(whole, 0, group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send_recv": send_recv,
        "barrier": lambda: dist.barrier(group=group),
    }[op]


def measure(op, nbytes, rank, world, groups, budget):
    """Median time in seconds by back end."""
    calls = {name: call_of(op, nbytes, rank, world, group) for name, group in groups.items()}
    times = {name: [] for name in groups}
    begin = time.perf_counter()
    go_on = torch.ones(1)
    while go_on.item():
        for name, call in calls.items():
            for repeat in range(3):  # the first one after the other back end's is not counted
                dist.barrier(group=groups["acc"])
                start = time.perf_counter()
                call()
                if repeat:
                    times[name].append(time.perf_counter() - start)
        go_on[0] = float(time.perf_counter() - begin < budget)
        dist.broadcast(go_on, 0, group=groups["acc"])
    medians = {}
    for name, own in times.items():
        slowest = torch.tensor(own)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=groups["gloo"])
        medians[name] = statistics.median(slowest.tolist())
    return medians


def worker(rank, world, port, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world)
    groups = {"acc": dist.new_group(backend="acc"), "gloo": dist.group.WORLD}
    if rank == 0:
        print(f"{world} workers\n{'':>15} {'bytes':>10} {'acc, us':>10} {'Gloo, us':>10} ratio",
              flush=True)
    for op in arguments.ops:
        nbytes = arguments.from_bytes
        while nbytes <= arguments.to_bytes:
            found = measure(op, nbytes, rank, world, groups, arguments.budget_s)
            if rank == 0:
                print(f"{op:>15} {nbytes if op != 'barrier' else 0:>10} {found['acc'] * 1e6:>10.0f} "
                      f"{found['gloo'] * 1e6:>10.0f} {found['gloo'] / found['acc']:>5.2f}",
                      flush=True)
            if op == "barrier":
                break
            nbytes *= 4
    dist.destroy_process_group()


def main():
    arguments = Options(__doc__, workers=[2, 4], ops=OPS, from_bytes=4 << 10, to_bytes=64 << 20,
                        budget_s=1.0).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for workers in arguments.workers:
        multiprocessing.spawn(worker, (workers, free_port(), arguments), workers)


if __name__ == "__main__":
    main()
