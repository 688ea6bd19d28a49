#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The optimizer's step with its state on NVMe, and the disk's own rate by fio.

fio reads and writes at once, with the sizes and the depth of the runtime's requests (io_uring, O_DIRECT). The bound
of a step is the slower of the disk, for the bytes that the step moves at fio's rate, and the update in memory. fio and
the step run in turn; medians."""
import json
import os
import statistics
import subprocess
import tempfile

from launchers import json_lines
from names import Options

parser = Options(__doc__, build="build/release", params=40_000_000, rounds=3, seconds=10, output=None)
parser.add_argument("folder", help="folder on the disk")
options = parser.parse_args()


def fio_rate():
    """Bytes per second, read and written together."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = ["fio", "--name=rate", f"--directory={folder}", "--ioengine=io_uring", "--direct=1", "--rw=rw",
                   "--bs=1M", "--iodepth=8", f"--size={24 * options.params // 2}", "--time_based",
                   f"--runtime={options.seconds}", "--output-format=json"]
        job = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["jobs"][0]
    return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


rates, steps = [], []
for _ in range(options.rounds):
    rates.append(fio_rate())
    program = os.path.join(options.build, "bin", "nvme_bench")
    steps += json_lines([program, options.folder, options.params])
rate = statistics.median(rates)
nvme, memory = (statistics.median(step[name] for step in steps) for name in ("nvme_s", "memory_s"))
moved = steps[0]["bytes_per_step"]
bound = max(moved / rate, memory)
result = {"params": options.params, "engine": steps[0]["engine"], "fio_bytes_per_s": rate,
          "step_bytes_per_s": moved / nvme, "step_s": nvme,
          "update_in_memory_s": memory, "disk_s": moved / rate, "of_bound": bound / nvme}
print(f"disk by fio {rate / 1e9:.2f} GB/s, step {moved / nvme / 1e9:.2f} GB/s ({steps[0]['engine']})")
print(f"step {nvme * 1e3:.0f} ms; disk alone {moved / rate * 1e3:.0f} ms, update in memory {memory * 1e3:.0f} ms: "
      f"{bound / nvme:.0%} of the bound")
if options.output:
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
