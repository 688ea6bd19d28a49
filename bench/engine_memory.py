# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank of one FSDP2 program (23 million parameters, two workers, `torch_bridge.py`'s large case) with torch's
engine and with `--engine acc`, at the points of a step: PSS in MiB above that after `import torch`, by kind of memory.

    python bench/engine_memory.py [--steps 4] [--acclaunch build/release/bin/acclaunch]

Kinds: "shared", memory of the runtime that the ranks share (each of n ranks counts an n-th); "private", that of malloc and of
torch's tensors; "files", pages of libraries, which more code that runs makes more. "largest" is the largest of samples
during the steps. Blocks from 128 KiB on go back to the system when they are freed, with both engines.
"""
import argparse
import collections
import json
import os
import pathlib
import sys

from names import some_of
from torch_bridge import CASES, ENGINE, Peak, make_variant
from workers import found_by

ROOT = pathlib.Path(__file__).absolute().parents[1]
VARIANTS = ("fsdp2", ENGINE)
WARMUP = 2


def kinds():
    """PSS of this process in bytes by kind of memory."""
    found, kind = collections.Counter(), None
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            path = rest[4] if len(rest) > 4 else ""
            kind = "shared" if "memfd:" in path else "files" if path.startswith("/") else "private"
        elif head == "Pss:":
            found[kind] += int(rest[0]) * 1024
    return found


def worker(variant, steps):
    import torch
    import torch.distributed as dist

    sys.path.append(str(ROOT / "examples" / "python"))
    case = CASES["large"]
    torch.set_num_threads(1)
    points = {}

    def note(name):
        dist.barrier()
        points[name] = kinds()
        dist.barrier()

    dist.init_process_group("gloo")
    note("import torch")
    (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()
    __import__("torch.distributed.fsdp")
    if variant == ENGINE:
        __import__("acclaunch._fsdp2")
    note("modules")
    step, model, optimizer = make_variant(variant, case, parts=True)
    note("sharded module")
    peak = None
    for number in range(WARMUP + steps):
        if number == WARMUP:
            note("between steps")
            peak = Peak()
        generator = torch.Generator().manual_seed(number * 1000 + dist.get_rank())
        tokens = torch.randint(case["vocab"], (case["rows"], case["positions"] + 1), generator=generator)
        if number < WARMUP + steps - 1:
            step(tokens)
            continue
        loss = model(tokens)
        note("after forward")
        loss.backward()
        note("after backward")
        optimizer.step()
        optimizer.zero_grad()
        note("after step")
    result = {name: {kind: value - points["import torch"][kind] for kind, value in found.items()}
              for name, found in points.items()}
    result["largest"] = {"total": peak.peak - sum(points["import torch"].values())}
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--acclaunch", default=str(ROOT / "build/release/bin/acclaunch"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--variants", type=some_of(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
        return
    found = {}
    for variant in args.variants:
        command = [args.acclaunch, "--cpu", "--num_processes", "2", "--main_process_port", "0", sys.executable,
                   os.path.abspath(__file__), "--worker", variant, "--steps", str(args.steps)]
        found[variant] = found_by(command, args.acclaunch, MALLOC_MMAP_THRESHOLD_="131072")
    for point in next(iter(found.values())):
        line = f"{point:16}"
        for variant, points in found.items():
            each = points[point]
            total = each.get("total", sum(each.values()))
            parts = "  ".join(f"{kind} {each.get(kind, 0) / 2**20:5.0f}" for kind in ("shared", "private", "files"))
            line += f" | {variant:19} {total / 2**20:5.0f}" + (f": {parts}" if "total" not in each else "")
        print(line, flush=True)


if __name__ == "__main__":
    main()
