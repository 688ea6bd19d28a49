#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The order of acclaunch.data and torch's DistributedSampler, in processes of their own that take turns: time until the
first batch of an epoch, time per step afterwards, memory, and a resume in the middle of the epoch.

    PYTHONPATH=build/release/python python bench/data_order.py [--samples 1e4,1e6,1e7] [--batch 64] [--rounds 3]

One rank of four, without reading samples. "share" is that of a step of --step_ms milliseconds. To resume,
DistributedSampler draws its whole epoch and passes over what was used; the order of acclaunch.data begins at the
position.
"""
import json
import resource
import statistics
import sys
import time

from launchers import json_lines
from names import Options

RANKS = 4


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ours(samples, batch, skipped):
    from acclaunch import data
    sampler = data.DataBatchSampler(samples, batch, rank=1, world_size=RANKS, seed=1, last_batch="pad")
    if skipped:
        sampler.order.seek((0, skipped * batch * RANKS))
    return iter(sampler), sampler.used


def torchs(samples, batch, skipped):
    from torch.utils.data import BatchSampler, DistributedSampler
    sampler = DistributedSampler(range(samples), num_replicas=RANKS, rank=1, seed=1)
    batches = iter(BatchSampler(sampler, batch, drop_last=False))
    for _ in range(skipped):
        next(batches)
    return batches, lambda: None


def measure(kind, samples, batch, skipped):
    """In a process of its own: prints milliseconds until the first batch, microseconds per step, and MiB."""
    import torch  # noqa: F401: both are used with it
    from acclaunch import data
    data.DataBatchSampler(10, 1)  # loads the library
    before = peak_mib()
    begin = time.perf_counter()
    batches, used = (ours if kind == "acclaunch" else torchs)(samples, batch, skipped)
    next(batches)
    used()
    first = time.perf_counter() - begin
    steps = min(2000, samples // (batch * RANKS) - skipped - 2)
    begin = time.perf_counter()
    for _ in range(steps):
        next(batches)
        used()
    each = (time.perf_counter() - begin) / steps
    print(json.dumps({"found": [1e3 * first, 1e6 * each, peak_mib() - before]}))


def main():
    parser = Options(__doc__, samples="1e4,1e6,1e7", batch=64, rounds=3, step_ms=100.0)
    parser.add_argument("--measure", nargs=4)
    options = parser.parse_args()
    if options.measure:
        kind, *numbers = options.measure
        measure(kind, *map(int, numbers))
        return
    print(f"{'':12}{'samples':>10}{'':>12}{'first batch':>14}{'step':>12}{'share':>9}{'memory':>12}")
    for samples in (int(float(word)) for word in options.samples.split(",")):
        half = samples // (options.batch * RANKS) // 2
        for skipped, name in ((0, "from start"), (half, "resumed")):
            rows = {"acclaunch": [], "torch": []}
            for _ in range(options.rounds):
                for kind, results in rows.items():
                    command = [sys.executable, __file__, "--measure", kind, samples, options.batch, skipped]
                    results.append(json_lines(command)[-1]["found"])
            for kind, results in rows.items():
                first, each, memory = (statistics.median(column) for column in zip(*results))
                share = each / options.step_ms / 10
                print(f"{kind:12}{samples:10}{name:>12}{first:11.2f} ms{each:9.1f} us{share:8.3f}%{memory:8.1f} MiB",
                      flush=True)


main()
