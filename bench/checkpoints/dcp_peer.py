# SPDX-License-Identifier: Apache-2.0
"""The same work as checkpoint_bench.cpp with torch.distributed.checkpoint; runs as one of several processes.

    torchrun --nproc-per-node N dcp_peer.py DIR BYTES REPETITIONS [--no_sync] [--keep]

Prints lines of JSON in the format of checkpoint_bench: medians of the seconds from the common start to
the end of the last process, and of the resident memory that rank 0 used in addition to the state.
"""
import argparse
import json
import os
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

ROWS, COLUMNS = 4096, 1024


def status_of(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def measured(work, samples):
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = status_of("VmRSS:")
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    cpu = time.process_time() - cpu
    dist.barrier()
    samples.append((time.perf_counter() - begin, status_of("VmHWM:") - before, cpu))


def state_of(nbytes, mesh, value):
    count = max(nbytes // (4 * ROWS * COLUMNS), 1)
    return {f"model.t{i}.weight": distribute_tensor(torch.full((ROWS, COLUMNS), value(i)), mesh, [Shard(0)])
            for i in range(count)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("bytes", type=int)
    parser.add_argument("repetitions", type=int)
    parser.add_argument("--no_sync", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = state_of(args.bytes, mesh, lambda i: float(i + 1))
    target = state_of(args.bytes, mesh, lambda i: 0.0)
    path = os.path.join(args.folder, "checkpoint")
    saves, loads = [], []
    for _ in range(args.repetitions):
        if dist.get_rank() == 0:
            shutil.rmtree(path, ignore_errors=True)
        writer = dcp.FileSystemWriter(path, sync_files=not args.no_sync)
        measured(lambda: dcp.save(state, storage_writer=writer), saves)
        measured(lambda: dcp.load(target, storage_reader=dcp.FileSystemReader(path)), loads)
        assert all(torch.equal(state[name].to_local(), target[name].to_local()) for name in state)
    if dist.get_rank() == 0:
        nbytes = len(state) * 4 * ROWS * COLUMNS
        for what, samples in (("save", saves), ("load", loads)):
            seconds = statistics.median(sample[0] for sample in samples)
            extra = statistics.median(sample[1] for sample in samples)
            print(json.dumps({
                "impl": "torch DCP" + (" without fsync" if args.no_sync else ""), "what": what,
                "bytes": nbytes, "seconds": round(seconds, 4),
                "cpu_s": round(statistics.median(sample[2] for sample in samples), 4), "gb_per_s": round(nbytes / seconds / 1e9, 3),
                "extra_mib": round(extra / 2**20, 1)}), flush=True)
        if not args.keep:
            shutil.rmtree(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
