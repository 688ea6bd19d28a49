#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A benchmark that takes names refuses one that it does not know with status 2, and lists those that it knows. Options
with one name have argparse's choices.

usage: bench_names_test.py SOURCE_DIR BIN_DIR
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

# Script, arguments before the names, a name that it knows.
SCRIPTS = (
    ("c10d.py", ["--ops"], "all_gather"),
    ("fairness.py", ["--only"], "healthz"),
    ("gpu/torch_attention.py", ["--shape", "1,8,1,8", "--program", "none", "--ours"], "cudnn"),
    ("gpu/torch_gpt.py", ["--device", "cpu", "--sdpa"], "flash"),
    ("machines.py", ["--strategies"], "grad_op"),
    ("machines.py", ["--impls"], "fsdp2"),
    ("memory.py", ["--strategies"], "hybrid"),
    ("quantized.py", ["--strategies"], "grad_op"),
    ("quantized.py", ["--runs"], "weights only"),
    ("rendezvous.py", ["--only"], "memory"),
    ("soak.py", ["--strategies"], "zero2"),
    ("soak.py", ["--changes"], "offload"),
    ("soak.py", ["--programs"], "train_gpt"),
    ("torch_bridge.py", ["--variants"], "fsdp2"),
    ("torch_bridge.py", ["--cases"], "large"),
    ("train.py", ["--strategies"], "full"),
    ("train.py", ["--impls"], "fsdp1"),
    ("wire.py", ["--strategies"], "zero2"),
)
# Program, arguments before and after the name, a part of its list. Programs that were not built are left out.
PROGRAMS = (
    ("output_lines", [], ["1", "64"], "produce"),
    ("store_load", ["1"], ["64"], "join"),
    ("store_load", ["1", "join", "64"], [], "barrier"),
    ("standin/kernel_bench_standin", [], ["1", "1", "1", "1"], "gemm"),
    ("standin/kernel_bench_standin", ["gemm", "8", "8", "8", "1"], [], "qkv"),
)
UNKNOWN = "nonsense"


def fault_of(command, environment, text):
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 2 and text in done.stderr:
        return None
    return f"{' '.join(command)}: status {done.returncode}, expected 2 and {text!r} in\n{done.stderr}"


def main():
    source, programs = map(pathlib.Path, sys.argv[1:])
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed")
        sys.exit(77)
    environment = os.environ | {"PYTHONPATH": str(source / "python"), "OMP_NUM_THREADS": "1",
                                "ACC_RUNTIME_LIBRARY": str(programs.parent / "lib/libacc_runtime.so")}
    runs = []
    for script, arguments, known in SCRIPTS:
        runs.append(([sys.executable, str(source / "bench" / script), *arguments, f"{known},{UNKNOWN}"],
                     f"unknown name '{UNKNOWN}', expected some of"))
    for program, before, after, known in PROGRAMS:
        if (programs / program).exists():
            runs.append(([str(programs / program), *before, UNKNOWN, *after], known))
    faults = [fault for command, text in runs if (fault := fault_of(command, environment, text))]
    print("\n\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
