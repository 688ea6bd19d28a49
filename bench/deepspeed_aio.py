#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The transfers of an optimizer's step with its state on NVMe: DeepSpeed's async_io and the runtime's file memory.

Both read and write the same bytes of one file through buffers of block_size * queue_depth bytes, in the order of a
step: while a piece is in use, the next one is read and the last one written. DeepSpeed has one handle for reads and one
for writes, as in its pipelined optimizer swapper. Nothing is computed. The two run in turn; medians. Needs DeepSpeed,
libaio with its headers and a C++ compiler, which DeepSpeed calls at its first use."""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", help="folder on the disk")
parser.add_argument("--package", default="build/release/python", help="folder of the package acclaunch")
parser.add_argument("--bytes", type=int, default=480 << 20, help="of the state")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--block_size", type=int, default=1 << 20)
parser.add_argument("--queue_depth", type=int, default=8)
parser.add_argument("--output", help="file for the results as JSON")
options = parser.parse_args()
sys.path.insert(0, options.package)

import torch  # noqa: E402
from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: E402

from acclaunch import _nvme  # noqa: E402

AIO = {"block_size": options.block_size, "queue_depth": options.queue_depth, "intra_op_parallelism": 1,
       "single_submit": False, "overlap_events": True}
PIECE = options.block_size * options.queue_depth
OFFSETS = range(0, options.bytes // PIECE * PIECE, PIECE)


class DeepSpeed:
    def __init__(self):
        extension = AsyncIOBuilder().load(verbose=False)
        self.reads, self.writes = (extension.aio_handle(*(AIO[key] for key in (
            "block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism"))) for _ in range(2))
        self.buffers = [self.reads.new_cpu_locked_tensor(PIECE, torch.empty(0, dtype=torch.uint8)) for _ in range(3)]
        self.file = tempfile.NamedTemporaryFile(dir=options.folder)
        os.posix_fallocate(self.file.fileno(), 0, len(OFFSETS) * PIECE)

    def step(self):
        self.reads.async_pread(self.buffers[0], self.file.name, OFFSETS[0])
        for number, offset in enumerate(OFFSETS):
            self.reads.wait()
            if number:
                self.writes.wait()
            if number + 1 < len(OFFSETS):
                self.reads.async_pread(self.buffers[(number + 1) % 3], self.file.name, OFFSETS[number + 1])
            self.writes.async_pwrite(self.buffers[number % 3], self.file.name, offset)
        self.writes.wait()


class Runtime:
    def __init__(self):
        self.memory = _nvme._Memory(options.folder, len(OFFSETS) * PIECE, 4, AIO)
        self.buffers = [_nvme._pages(PIECE) for _ in range(2)]

    def step(self):
        self.memory.start_reading(OFFSETS[0], self.buffers[0])
        for number, offset in enumerate(OFFSETS):
            self.memory.wait()
            if number + 1 < len(OFFSETS):
                self.memory.start_reading(OFFSETS[number + 1], self.buffers[(number + 1) % 2])
            self.memory.write(offset, self.buffers[number % 2])
        self.memory.wait()


def seconds(transfers):
    begin = time.perf_counter()
    transfers.step()
    return time.perf_counter() - begin


ways = {"deepspeed_async_io": DeepSpeed(), "acclaunch": Runtime()}
for each in ways.values():
    each.step()  # the first writes of a file
taken = {name: [] for name in ways}
for _ in range(options.rounds):
    for name, each in ways.items():
        taken[name].append(seconds(each))
moved = 2 * len(OFFSETS) * PIECE
rates = {name: moved / statistics.median(each) for name, each in taken.items()}
for name, rate in rates.items():
    print(f"{name}: {rate / 1e9:.2f} GB/s, read and written together")
if options.output:
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"bytes": moved, **{f"{name}_bytes_per_s": rate for name, rate in rates.items()}}, file, indent=1)
