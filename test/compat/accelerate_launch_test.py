#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the same command lines with the real `accelerate launch` and with acclaunch, and compares
what the programs see. Covers cases that test/data/launch_env has not recorded.

    accelerate_launch_test.py ACCLAUNCH

Accelerate and torchrun are imported once; each `accelerate launch` is a fork of this process.
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from own_network import enter_own_network  # noqa: E402

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


def launch_real(words, folder, environment, out):
    """Runs the command of Accelerate in a fork of this process. Returns its exit status."""
    from accelerate.commands import launch

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            sys.argv[1:] = words
            launch.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status if isinstance(status, int) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def launch_ours(words, folder, environment, out):
    command = [os.path.abspath(sys.argv[1]), "--compat", "accelerate", *words]
    return subprocess.run(command, cwd=folder, env=environment, stdout=out, stderr=out).returncode


def seen(launch, flags, config):
    """Returns the exit status, by rank what each program saw, and the output."""
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
        with open(Path(folder) / "output", "w+") as out:
            status = launch([*words, "prog.py", "--argument"], folder, environment, out)
            out.seek(0)
            output = out.read()
        ranks = []
        for path in notes.glob("*.json"):
            note = json.loads(path.read_text())
            environment = {name: value.replace(folder, "FOLDER")
                           for name, value in note["env"].items()
                           if name not in IGNORED and not name.startswith("ACC_")}
            ranks.append((int(environment.get("RANK", 0)), environment, note["command"][1:]))
        return status == 0, sorted(ranks), output


def differences(flags, config):
    real = seen(launch_real, flags, config)
    ours = seen(launch_ours, flags, config)
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
    enter_own_network()
    with tempfile.TemporaryDirectory() as home:  # Accelerate reads these when it is imported
        os.environ |= {"HF_HOME": home, "CUDA_VISIBLE_DEVICES": ""}
        import accelerate.commands.launch
        import torch.distributed.run  # noqa: F401
        results = [differences(*case) for case in CASES]
    for case, lines in zip(CASES, results):
        for line in lines:
            print(f"{case}: {line}")
    sys.exit(1 if any(results) else 0)


if __name__ == "__main__":
    main()
