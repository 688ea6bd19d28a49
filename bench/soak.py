# SPDX-License-Identifier: Apache-2.0
"""Memory of the ranks over many steps, in every strategy, in C++ and in Python: it must stay flat.

    python bench/soak.py [--steps 20000] [--strategies zero2,fsdp_full_shard,...] [--changes none,bf16,...]
                         [--programs train_gpt,adamw,...] [--bin build/release/bin] [--python PYTHON]

A strategy is a file of configs/; it runs as it is and with each change that it knows. Programs: `train_gpt`, and the
GPT of examples/python with the optimizers `adamw` and `torch_optimizer`, for which PYTHON needs torch. Prints the
private memory of every rank (RssAnon, KiB) after at least 200 steps and at the end, and "grows" if one gained more
than 512 KiB and 16 bytes per step; then the exit status is 1.
"""
import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from names import BIN, PYTHON, ROOT, Options
from train import workers_below

FIRST_SAMPLE = 200
PROGRAMS = ("train_gpt", "adamw", "torch_optimizer")
STRATEGIES = tuple(sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")))
SHARDED_ZERO = ("zero1", "zero2", "zero3")
TWICE = ["--gradient_accumulation_steps", "2"]


def offload(strategy):
    if strategy.startswith("fsdp"):
        return ["--fsdp_offload_params", "true"]
    return ["--offload_optimizer_device", "cpu"] + ["--offload_param_device", "cpu"] * (strategy == "zero3")


# The strategies that know a change, and its flags; a dictionary: keys of a DeepSpeed file.
CHANGES = {
    "none": (STRATEGIES, lambda strategy: []),
    "bf16": (STRATEGIES, lambda strategy: ["--mixed_precision", "bf16"]),
    "fp16": (STRATEGIES, lambda strategy: ["--mixed_precision", "fp16"]),
    "accumulate": (STRATEGIES, lambda strategy: TWICE),
    "no_sync": (STRATEGIES, lambda strategy: TWICE),
    "machines": (STRATEGIES, lambda strategy: []),  # two launchers, which act as two machines
    "offload": ([name for name in STRATEGIES if name not in ("fsdp_no_shard", "zero0", "zero3_hpz")], offload),
    "overlap": (["zero2"], {"overlap_comm": True}),
    "no_overlap": (["zero3"], {"overlap_comm": False}),
    "apart": (SHARDED_ZERO, {"contiguous_gradients": False}),
}


def private_memory(launchers):
    """RssAnon in KiB by rank of the workers that run."""
    found = {}
    for launcher in launchers:
        for pid in workers_below(launcher.pid):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace")
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            rank, kib = re.search(r"(?:^|\0)RANK=(\d+)", environment), re.search(r"RssAnon:\s*(\d+)", status)
            if rank and kib:  # the process has not ended in the meantime
                found[int(rank[1])] = int(kib[1])
    return found


def command(args, strategy, change, program, folder):
    """The words before and after the flags of a machine."""
    flags = CHANGES[change][1]
    if isinstance(flags, dict):
        config = folder / "zero.json"
        config.write_text(json.dumps({"train_micro_batch_size_per_gpu": "auto",
                                      "zero_optimization": {"stage": int(strategy[4])} | flags}))
        chosen = ["--use_deepspeed", "--deepspeed_config_file", config]
    else:
        chosen = ["--config_file", ROOT / "configs" / f"{strategy}.yaml", *flags(strategy)]
    worker = [args.bin / "train_gpt", "--data", ROOT / "README.md", "--layers", 2, "--dim", 32, "--heads", 2,
              "--seq_len", 16, "--micro_batch", 2, "--steps", args.steps, *["--no_sync"] * (change == "no_sync")]
    if program != "train_gpt":
        worker = [args.python, __file__, "--worker", program, "--steps", args.steps,
                  *["--no_sync"] * (change == "no_sync")]
    ranks = 4 if "hybrid" in strategy or "hpz" in strategy else 2
    return ([args.bin / "acclaunch", "--quiet", "--cpu", "--num_processes", ranks, *chosen], worker)


def soak(args, strategy, change, program, folder):
    """Returns two pairs (step, memory by rank): of the first sample after FIRST_SAMPLE steps and of the last one."""
    before, worker = command(args, strategy, change, program, folder)
    machines = 2 if change == "machines" else 1
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(args.bin.parent / "python")}
    launchers = []
    for machine in range(machines):
        place = ["--num_machines", machines, "--machine_rank", machine, "--main_process_ip", "127.0.0.1",
                 "--main_process_port", args.port] if machines > 1 else ["--main_process_port", 0]
        launchers.append(subprocess.Popen(list(map(str, [*before, *place, *worker])), env=environment, text=True,
                                          stdout=subprocess.PIPE if machine == 0 else subprocess.DEVNULL,
                                          stderr=subprocess.STDOUT))
    samples, tail = [], collections.deque(maxlen=20)
    for line in launchers[0].stdout:
        tail.append(line)
        step = re.search(r"step (\d+)", line)
        if step and FIRST_SAMPLE <= int(step[1]) < args.steps:  # after the last step the ranks end
            memory = private_memory(launchers)
            if not samples or len(memory) == len(samples[0][1]):
                samples.append((int(step[1]), memory))
    if any([each.wait() for each in launchers]) or len(samples) < 2:
        sys.exit(f"{' '.join(map(str, [*before, *worker]))}: failed or too short\n{''.join(tail)}")
    return samples[0], samples[-1]


def work(args):
    """A rank of the Python programs."""
    import torch

    import acclaunch.torch as acc
    sys.path.append(str(ROOT / "examples" / "python"))
    from train_gpt import GPT

    runtime = acc.Runtime()
    torch.manual_seed(0)
    model = acc.fully_shard(GPT(vocab=64, positions=16, dim=32, layers=2, heads=2), runtime)
    optimizer = (acc.AdamW(model) if args.worker == "adamw" else acc.TorchOptimizer(model, torch.optim.AdamW, lr=1e-3))
    tokens = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(runtime.rank))
    micro_steps = runtime.gradient_accumulation_steps
    for step in range(1, args.steps + 1):
        for number in range(micro_steps):
            with acc.no_sync(model) if args.no_sync and number < micro_steps - 1 else contextlib.nullcontext():
                optimizer.scale(model(tokens)).backward()
        optimizer.step()
        if runtime.rank == 0 and (step == FIRST_SAMPLE or step % max(1, args.steps // 20) == 0):
            print(f"step {step}", flush=True)


def main():
    parser = Options(__doc__, bin=BIN, python=PYTHON, steps=20_000, strategies=STRATEGIES, changes=list(CHANGES),
                     programs=PROGRAMS)
    parser.add_argument("--port", type=int, default=29500, help="of the two launchers of `machines`")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--no_sync", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)
    if args.steps < 10 * FIRST_SAMPLE:
        parser.error(f"--steps {args.steps}: expected at least {10 * FIRST_SAMPLE}")
    grows = False
    with tempfile.TemporaryDirectory() as temporary:
        for program, strategy, change in itertools.product(args.programs, args.strategies, args.changes):
            if strategy not in CHANGES[change][0]:
                continue
            (begin, first), (end, last) = soak(args, strategy, change, program, pathlib.Path(temporary))
            gained = max(last[rank] - first[rank] for rank in first)
            flat = gained <= max(512, 16 * (end - begin) // 1024)
            grows = grows or not flat
            ranks = ", ".join(f"{first[rank]} to {last[rank]}" for rank in sorted(first))
            print(f"{program:<16}{strategy:<26}{change:<12}{'flat ' if flat else 'grows'} "
                  f"step {begin:>5} to {end:>6}: {ranks}", flush=True)
    return int(grows)


if __name__ == "__main__":
    sys.exit(main())
