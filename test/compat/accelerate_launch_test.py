#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the same command lines with the real `accelerate launch` and with acclaunch, and compares
what the programs see. Covers cases that test/data/launch_env has not recorded.

    accelerate_launch_test.py ACCLAUNCH
"""
import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from launch_env_test import own_network

PROGRAM = """import json, os, sys
with open(os.path.join(os.environ["NOTES"], f"{os.getpid()}.json"), "w") as note:
    json.dump({"env": dict(os.environ), "command": sys.orig_argv}, note)
"""
# Set by Python libraries, by shells, or different in every run.
IGNORED = {"_", "LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "NOTES", "TORCHELASTIC_ERROR_FILE",
           "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK",
           "KMP_INIT_AT_FORK", "TRITON_CACHE_DIR"}
FSDP = "distributed_type: FSDP\nnum_processes: 2\n"
FSDP_2 = "fsdp_config:\n  fsdp_version: 2\n"
PARALLEL = "--use_fsdp --use_parallelism_config --fsdp_version 2 "
CASES = [  # flags, contents of the configuration file
    (PARALLEL + "--num_processes 4 --parallelism_config_dp_shard_size 2 "
     "--parallelism_config_cp_size 2", None),
    (PARALLEL + "--num_processes 4 --parallelism_config_sp_size 4", None),
    ("", FSDP + FSDP_2 + "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n"),
    ("--use_fsdp", FSDP + FSDP_2 + "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n"),
    ("", FSDP + FSDP_2 + "  fsdp_reshard_after_forward: no\n  fsdp_use_orig_params: 'no'\n"),
    ("", FSDP + "use_cpu: true\nmixed_precision: BF16\ndebug: true\ndynamo_config:\n"
     "  dynamo_backend: INDUCTOR\n  dynamo_use_dynamic: true\n"),
    ("--cpu", FSDP + "fsdp_config: {}\n"),
    ("--multi_gpu --num_processes 2 --gpu_ids 0,1 --mixed_precision fp16",
     FSDP + "gpu_ids: '3'\nmixed_precision: bf16\n"),
    ("--num_processes 4 --main_process_port 29777",
     "distributed_type: MULTI_CPU\nmain_process_ip: 1.2.3.4\n"),
    ("--cpu --dynamo_backend eager --zero_stage 3 --fsdp_version 2", None),
    ("--use_fsdp --num_processes 1 --fsdp_state_dict_type 3 --fsdp_offload_params TRUE", None),
    ("--cpu", "distributed_type: 'NO'\nuse_cpu: false\n"),
    ("--use_fsdp --num_processes 2 --machine_rank 1", None),
    ("", "distributed_type: 'NO'\nfp16: true\nrdzv_backend: c10d\ntpu_env: []\n"
     "tpu_use_sudo: false\nmain_training_function: main\nenable_cpu_affinity: true\n"),
]


def seen(launcher, flags, config):
    """Returns the exit status, and by rank what each program saw."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prog.py").write_text(PROGRAM)
        notes = Path(folder) / "notes"
        notes.mkdir()
        words = flags.split()
        if config is not None:
            (Path(folder) / "c.yaml").write_text(config)
            words = ["--config_file", "c.yaml", *words]
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LANG": "C.UTF-8",
                       "HOME": folder, "HF_HOME": folder, "NOTES": str(notes),
                       "ACC_SIMULATE_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""}
        run = subprocess.run([*own_network(), *launcher, *words, "prog.py", "--argument"],
                             cwd=folder, env=environment, capture_output=True, text=True)
        ranks = []
        for path in notes.glob("*.json"):
            note = json.loads(path.read_text())
            environment = {name: value.replace(folder, "FOLDER")
                           for name, value in note["env"].items()
                           if name not in IGNORED and not name.startswith("ACC_")}
            ranks.append((int(environment.get("RANK", 0)), environment, note["command"][1:]))
        return run.returncode == 0, sorted(ranks), run.stderr


def differences(acclaunch, flags, config):
    real = seen([sys.executable, "-m", "accelerate.commands.launch"], flags, config)
    ours = seen([acclaunch, "--compat", "accelerate"], flags, config)
    if real[0] != ours[0] or len(real[1]) != len(ours[1]):
        return [f"accelerate: {len(real[1])} programs\n{real[2]}",
                f"acclaunch: {len(ours[1])} programs\n{ours[2]}"]
    lines = []
    for (rank, wanted, command), (_, found, our_command) in zip(real[1], ours[1]):
        lines += [f"rank {rank} {name}: accelerate {wanted.get(name)!r}, acclaunch "
                  f"{found.get(name)!r}" for name in sorted(wanted.keys() | found.keys())
                  if wanted.get(name) != found.get(name)]
        if command != our_command:
            lines.append(f"rank {rank} command: accelerate {command}, acclaunch {our_command}")
    return lines


def main():
    if importlib.util.find_spec("accelerate") is None:
        sys.exit(77)
    acclaunch = os.path.abspath(sys.argv[1])
    workers = os.cpu_count() if own_network() else 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda case: differences(acclaunch, *case), CASES))
    for case, lines in zip(CASES, results):
        for line in lines:
            print(f"{case}: {line}")
    sys.exit(1 if any(results) else 0)


if __name__ == "__main__":
    main()
