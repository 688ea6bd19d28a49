#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model whose optimizer state is a multiple of the memory limit of its control group trains and resumes.

Runs train_gpt in ZeRO 3 with bf16, weights and optimizer state on NVMe, in a control group with a limit of --limit MB
(as root; cgroup v2, or v1). Three runs: some steps without a stop; the first half with a checkpoint; the second half from it.
Prints the bytes of the state, the limit, the peak of the group, and whether the losses are equal. --without runs it in
memory, too, which the kernel ends."""
import json
import os
import signal
import subprocess
import sys
import tempfile

from names import Options

parser = Options(__doc__, build="build/release", limit=160, dim=384, layers=78, steps=4, ranks=1, without=False)
parser.add_argument("folder", help="folder on the disk")
options = parser.parse_args()
LIMIT = options.limit * 1_000_000


class Group:
    """A control group with a limit of memory."""

    def __init__(self):
        v2 = "/sys/fs/cgroup"
        self.v2 = os.path.exists(f"{v2}/cgroup.controllers") and "memory" in open(f"{v2}/cgroup.controllers").read()
        self.path = f"{v2}/acc-nvme-{os.getpid()}" if self.v2 else f"{v2}/memory/acc-nvme-{os.getpid()}"
        os.mkdir(self.path)
        self.write("memory.max" if self.v2 else "memory.limit_in_bytes", LIMIT)
        if self.v2 and os.path.exists(f"{self.path}/memory.swap.max"):
            self.write("memory.swap.max", 0)

    def write(self, name, value):
        with open(f"{self.path}/{name}", "w", encoding="utf-8") as file:
            file.write(str(value))

    def enter(self):
        self.write("cgroup.procs", 0 if self.v2 else os.getpid())

    def peak(self):
        with open(f"{self.path}/{'memory.peak' if self.v2 else 'memory.max_usage_in_bytes'}", encoding="utf-8") as file:
            return int(file.read())

    def remove(self):
        os.rmdir(self.path)


def train(folder, name, steps, more=(), offload=True):
    """The status, the losses and the last line of the metrics."""
    metrics = os.path.join(folder, f"{name}.jsonl")
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0}
    if offload:
        for part in ("offload_optimizer", "offload_param"):
            zero[part] = {"device": "nvme", "nvme_path": options.folder}
    config = os.path.join(folder, f"{name}.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"zero_optimization": zero, "bf16": {"enabled": True}, "aio": {"block_size": 262144},
                   "train_micro_batch_size_per_gpu": "auto"}, file)
    programs = os.path.join(options.build, "bin")
    command = [f"{programs}/acclaunch", "--quiet", "--cpu", "--num_processes", str(options.ranks), "--use_deepspeed",
               "--deepspeed_config_file", config, f"{programs}/train_gpt",
               "--data", os.path.join(folder, "text"), "--layers", str(options.layers), "--heads", "8", "--dim",
               str(options.dim), "--seq_len", "16", "--micro_batch", "1", "--steps", str(steps), "--metrics", metrics,
               *more]
    process = subprocess.run(command, preexec_fn=GROUP.enter, stdout=subprocess.DEVNULL, check=False)
    lines = []
    if os.path.exists(metrics):
        with open(metrics, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    return process.returncode, [line["loss"] for line in lines], lines[-1] if lines else {}


GROUP = Group()
try:
    with tempfile.TemporaryDirectory(dir=options.folder) as top:
        with open(os.path.join(top, "text"), "w", encoding="utf-8") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 1000)
        status, whole, last = train(top, "whole", options.steps)
        if status != 0:
            sys.exit(f"nvme_limit: the training ended with status {status}")
        state = sum(rank["nvme_bytes"] for rank in last["ranks"])
        series = os.path.join(top, "run")
        half = options.steps // 2
        first = train(top, "first", half, ("--checkpoint", series, "--checkpoint_every", str(half)))
        second = train(top, "second", options.steps, ("--checkpoint", series, "--checkpoint_every", str(options.steps)))
        # Weights of 2 bytes, gradients of 4, and master weights and moments of 12.
        optimizer = state * 12 / 18
        if first[0] != 0 or second[0] != 0:
            sys.exit(f"nvme_limit: the two parts ended with status {first[0]} and {second[0]}")
        print(f"optimizer state {optimizer / 1e6:.0f} MB = {optimizer / LIMIT:.1f} times the limit of "
              f"{LIMIT / 1e6:.0f} MB; in files {state / 1e6:.0f} MB; peak of the group {GROUP.peak() / 1e6:.0f} MB")
        print(f"losses without a stop {whole}")
        equal = first[1] + second[1] == whole
        print(f"losses of two parts   {first[1] + second[1]}: {'equal' if equal else 'DIFFERENT'}")
        if options.without:
            status = train(top, "without", 1, offload=False)[0]
            print(f"in memory: status {status}" + (" (killed)" if status in (137, -signal.SIGKILL) else ""))
        sys.exit(0 if equal else 1)
finally:
    GROUP.remove()
