#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random flags and configuration files through the real `accelerate launch` and through
`acclaunch --compat accelerate`. Both must refuse them, or start the same number of workers with the
same environment.

    launch_env_differential.py ACCLAUNCH [--seed N] [--count N] [--case N] [--verbose]

The real launcher is imported once. Its functions run up to the point where they would start
processes. The variables that torchrun adds later are tested in test/data/launch_env.
"""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from own_network import own_network

NETWORK = own_network()
REFUSED = []  # reason for each case that one of the launchers refused
BARE = object()  # a flag without a value
WORDS = [None, None, "auto", "none", "None", "maybe", "", True, False, "true", "FALSE", "yes", "no",
         0, 1, 2, "1", "2", 1.0, "0.5", ["A", "B"], {}]
NUMBERS = [0, 1, 2, 3, "2", 1.5, None, "auto", True]
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "no_shard", "Hybrid_Shard", "3", 2, "HALF_SHARD", None]
CLASSES = ["Block", "BertLayer, GPTBlock", ["Block", "Layer's"], None, ""]
DEVICES = ["none", "cpu", "nvme", "CPU", "disk", None, True]
FSDP = {
    "fsdp_version": [1, 2, "2", 3, None, "two"],
    "fsdp_sharding_strategy": STRATEGIES,
    "fsdp_reshard_after_forward": [True, False, "true", "FULL_SHARD", "shard_grad_op", 2, None],
    "fsdp_offload_params": WORDS,
    "fsdp_min_num_params": [1000, "2000", 1e8, "1e8", None, 0, -1, 4096],
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "size_based_wrap", "NO_WRAP", "WRAP", None],
    "fsdp_transformer_layer_cls_to_wrap": CLASSES,
    "fsdp_backward_prefetch": ["BACKWARD_PRE", "backward_post", "NO_PREFETCH", 1, "AHEAD", None],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "sharded_state_dict", 3, "HALF", None],
    "fsdp_forward_prefetch": WORDS,
    "fsdp_use_orig_params": WORDS,
    "fsdp_cpu_ram_efficient_loading": WORDS,
    "fsdp_sync_module_states": WORDS,
    "fsdp_activation_checkpointing": WORDS,
    "fsdp_activation_checkpointing_offload": WORDS,
}
DEEPSPEED = {
    "zero_stage": [0, 1, 2, 3, "3", 4, None, "auto", "two"],
    "gradient_accumulation_steps": [1, 4, "auto", "AUTO", None, 0, 2.0],
    "gradient_clipping": [1, 1.0, 0.5, "auto", "AUTO", None, 100000.0, 0.00001],
    "offload_optimizer_device": DEVICES,
    "offload_param_device": DEVICES,
    "offload_optimizer_nvme_path": ["/nvme", None, "none"],
    "offload_param_nvme_path": ["/nvme", None, ""],
    "zero3_init_flag": WORDS,
    "zero3_save_16bit_model": WORDS,
    "deepspeed_moe_layer_cls_names": CLASSES,
    "deepspeed_multinode_launcher": ["pdsh", "standard", "STANDARD", None, "mpi"],
    "deepspeed_hostfile": ["/none", None],
}
SIZES = {f"parallelism_config_{key}_size": NUMBERS
         for key in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
PARALLELISM = SIZES | {
    "parallelism_config_cp_backend": ["torch", "deepspeed", None],
    "parallelism_config_cp_comm_strategy": ["allgather", "alltoall", "ring", None],
    "parallelism_config_sp_backend": ["deepspeed", "torch", None],
    "parallelism_config_sp_seq_length": [128, "128", None],
    "parallelism_config_sp_seq_length_is_variable": [True, False, "false", None],
    "parallelism_config_sp_attn_implementation": ["sdpa", "flash_attention_2", None],
}
DYNAMO = {
    "dynamo_backend": ["no", "NO", "inductor", "INDUCTOR", "Eager", "fast", None, False, "TVM"],
    "dynamo_mode": ["default", "reduce-overhead", "MAX-AUTOTUNE", "fast", None],
    "dynamo_use_fullgraph": [True, False, "true", "no", None, 1],
    "dynamo_use_dynamic": [True, False, "false", None, 0],
    "dynamo_use_regional_compilation": [True, False, None, "yes"],
}
FP8 = {
    "fp8_backend": ["ao", "te", "msamp", "TE", "rocm", None],
    "fp8_use_autocast_during_eval": [True, False, "true", None],
    "fp8_margin": [0, 1, "2", None],
    "fp8_interval": [1, 2, None],
    "fp8_format": ["HYBRID", "E4M3", "hybrid", None],
    "fp8_amax_history_len": [1024, "16", None],
    "fp8_amax_compute_algo": ["max", "most_recent", "MAX", None],
    "fp8_opt_level": ["O1", "O2", "o2", None],
    "fp8_enable_fsdp_float8_all_gather": [True, False, "true", None],
    "fp8_pad_inner_dim": [True, "false", None],
}
TOP = {
    "mixed_precision": ["no", "bf16", "fp16", "BF16", "fp8", "fp32", None, "", False],
    "num_processes": [1, 2, 2, 2, "2", None, -1, 3],
    "num_machines": [1, 1, 1, "1", None],
    "machine_rank": [0, "0", None, 1],
    "main_process_ip": ["127.0.0.1", None, "1.2.3.4"],
    "main_process_port": [29500, 29777, 0, None, "29500"],
    "gpu_ids": ["all", "0,1", "0", None, 0, "ALL", ""],
    "use_cpu": [True, False, False, None, "yes", "no", "maybe", 0, 1],
    "debug": [True, False, None, "no", "", 0],
    "downcast_bf16": ["no", False, True, None],
    "same_network": [True, False, None, "maybe"],
    "rdzv_backend": ["static", "c10d", None, "etcd"],
    "enable_cpu_affinity": [True, False, None],
    "main_training_function": ["main", None],
    "tpu_use_sudo": [False, None],
    "tpu_env": [[], None],
    "compute_environment": ["LOCAL_MACHINE"] * 5 + ["local_machine", None],
    "fp16": [True, False, None],
    "dynamo_backend": ["NO", "INDUCTOR", "inductor", None],
    "ipex_config": [{}],
    "no_such_key": [1],
}
TYPES = ["NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "FSDP", "FSDP", "DEEPSPEED", "DEEPSPEED"] * 4 + [
    "fsdp", "SHARDED", False, None]
GOOD_FLAGS = {
    "fsdp_version": [1, 2], "fsdp_min_num_params": [0, 1000, -1], "zero_stage": [0, 1, 2, 3, 7],
    "gradient_accumulation_steps": [0, 1, 4], "gradient_clipping": [1, 0.5, 100000.0, 1e-5, 3e20],
    "parallelism_config_cp_backend": ["torch"], "parallelism_config_sp_backend": ["deepspeed"],
    "dynamo_backend": ["no", "inductor", "tvm"], "dynamo_mode": ["default", "reduce-overhead"],
    "fp8_backend": ["ao", "te"], "fp8_margin": [0, 2], "fp8_interval": [1, 2], "fp8_format": ["E4M3"],
    "fp8_amax_history_len": [16], "fp8_amax_compute_algo": ["max"], "fp8_opt_level": ["O1"],
    "fp8_enable_fsdp_float8_all_gather": [True, "no"], "fp8_pad_inner_dim": ["on", "false"],
    "mixed_precision": ["no", "bf16", "fp16", "fp8"], "main_process_port": [29500, 29777],
    "num_cpu_threads_per_process": [1, 3], "fp8_override_linear_precision": ["true,false,no"],
}
RUINOUS = ("ipex_config", "no_such_key", "num_machines", "compute_environment", "gpu_ids")
SPELLINGS = {"null": ["null", "~", ""], "true": ["true", "True", "yes", "ON"],
             "false": ["false", "FALSE", "no", "off"], "4096": ["4_096", "0x1000", "010000", "+4096"]}
BLOCKS = {"fsdp_config": (FSDP, "fsdp_"), "deepspeed_config": (DEEPSPEED, ""),
          "parallelism_config": (PARALLELISM, ""), "dynamo_config": (DYNAMO, "dynamo_"),
          "fp8_config": (FP8, "fp8_")}
TOGGLES = ["dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation",
           "fp8_use_autocast_during_eval", "debug", "enable_cpu_affinity", "downcast_bf16", "quiet",
           "use_parallelism_config"]
MODE_FLAGS = ["cpu", "multi_gpu", "use_fsdp", "use_fsdp", "use_deepspeed", "use_deepspeed"]
FLAGS = {
    "mixed_precision": TOP["mixed_precision"], "gpu_ids": ["all", "0,1", "0", "ALL"],
    "main_process_ip": ["127.0.0.1"], "main_process_port": [29500, 29777, "port"],
    "num_cpu_threads_per_process": [1, 3, "two"], "max_restarts": [0, 1], "role": ["trainer"],
    "fp8_override_linear_precision": ["true,false,no", "maybe"],
}
VARIABLES = {"OMP_NUM_THREADS": ["3", "0"], "FSDP_STATE_DICT_TYPE": ["LOCAL_STATE_DICT"],
             "FSDP_AUTO_WRAP_POLICY": ["anything"], "FSDP_VERSION": ["2"],
             "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ["8", "many"],
             "ACCELERATE_MIXED_PRECISION": ["bf16"], "ACCELERATE_USE_CPU": ["True"],
             "CUDA_VISIBLE_DEVICES": ["0"], "PYTHONPATH": ["/a::/b"] + ["with_fp8_library"] * 3, "lower_case": ["kept"]}


def some(rng, table, most):
    """Returns up to `most` keys of a table, each with one of its values."""
    keys = rng.sample(sorted(table), rng.randint(0, min(most, len(table))))
    return {key: rng.choice(table[key]) for key in keys}


def random_config(rng):
    config = {"distributed_type": rng.choice(TYPES)} if rng.random() < 0.98 else {}
    config |= {key: value for key, value in some(rng, TOP, 4).items()
               if rng.random() < (0.1 if key in RUINOUS else 0.9)}
    if rng.random() < 0.8:
        config.setdefault("num_processes", 2)
    wanted = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config"}.get(config.get("distributed_type"))
    for name, (table, prefix) in BLOCKS.items():
        if rng.random() < (0.9 if name == wanted else 0.2):
            block = some(rng, table, 7)
            if prefix and rng.random() < 0.3:
                block = {key.removeprefix(prefix): value for key, value in block.items()}
            if rng.random() < 0.2:
                block["unknown_key"] = 1
            config[name] = rng.choice([block] * 9 + [None])
    return config


def flag_value(rng, key, values):
    """Returns a value; usually one that argparse accepts, because otherwise the launch is refused."""
    good = GOOD_FLAGS.get(key) or ([1, 2, 4] if key in SIZES else values)
    return rng.choice(good if rng.random() < 0.97 else values)


def random_flags(rng):
    flags = {}
    if rng.random() < 0.5:
        flags[rng.choice(MODE_FLAGS)] = BARE
    if rng.random() < 0.02:
        flags[rng.choice(MODE_FLAGS)] = BARE
    if rng.random() < 0.7:
        flags["num_processes"] = rng.choice([1, 2, 2, 2, 3])
    tables = FSDP | DEEPSPEED | PARALLELISM | DYNAMO | FP8 | FLAGS
    for key in some(rng, tables, 6):
        value = flag_value(rng, key, tables[key])
        if key not in TOGGLES and not isinstance(value, (type(None), list, dict)) and value != "":
            flags[key] = value
    if rng.random() < 0.1:
        flags |= {"use_fsdp": BARE, "use_parallelism_config": BARE}
        flags.pop("multi_gpu", None), flags.pop("use_deepspeed", None), flags.pop("cpu", None)
    for key in TOGGLES:
        if rng.random() < (0.01 if key == "use_parallelism_config" else 0.05):
            flags[key] = BARE
    return flags


def random_case(seed, number):
    """Returns words of the command line, contents of the file or None, variables of the parent."""
    rng = random.Random(seed * 1_000_000 + number)
    flags = random_flags(rng)
    config = random_config(rng) if rng.random() < 0.75 else None
    if config is None and rng.random() < 0.9:
        flags.setdefault("num_processes", 2)
    words = []
    for key, value in flags.items():
        words.append("--" + (key if rng.random() < 0.8 else key.replace("_", "-")))
        if value is not BARE:
            words.append(str(value))
    variables = some(rng, VARIABLES, 4) if rng.random() < 0.5 else {}
    if "fp8" in words and rng.random() < 0.8:
        variables["PYTHONPATH"] = FP8_LIBRARY
    if config is not None and rng.random() < 0.1:
        config = json.dumps(config)
    elif config is not None:
        config = re.sub(r"(?<=: )(null|true|false|4096)$", lambda found: rng.choice(SPELLINGS[found[0]]),
                        yaml.safe_dump(config, sort_keys=False), flags=re.MULTILINE)
    return words, config, variables


class Refused(Exception):
    pass


class RealLauncher:
    """Runs `accelerate launch` up to the start of processes."""

    def __init__(self):
        from accelerate.commands import launch
        from accelerate.utils import launch as utils
        import torch.distributed.run as torchrun
        self.launch, self.torchrun = launch, torchrun
        self.parser = launch.launch_command_parser()
        launch.default_config_file = "/no/such/file"
        launch.subprocess = self  # replaces subprocess.Popen
        torchrun.run = self.run
        utils.is_port_in_use = self.is_port_in_use
        utils.is_fp8_available = lambda: FP8_LIBRARY in os.environ.get("PYTHONPATH", "")

    @staticmethod
    def is_port_in_use(port):
        with socket.socket() as probe:
            probe.connect_ex(("localhost", port))  # raises the errors for wrong types
        return False

    def Popen(self, command, env):
        for name, value in env.items():
            os.fsencode(name), os.fsencode(value)  # as the real launcher does
        self.seen = 1, dict(env)
        self.returncode = 0
        return self

    def wait(self):
        return 0

    def run(self, args):
        config, _, _ = self.torchrun.config_from_args(args)
        assert config.nproc_per_node > 0
        self.seen = config.nproc_per_node, dict(os.environ)

    def workers(self, words, environment, folder):
        """Returns the number of workers and their environment. Raises Refused."""
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        self.seen = None
        try:
            with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.launch.launch_command(self.parser.parse_args(words))
            return self.seen
        except (Exception, SystemExit) as error:
            raise Refused(f"{type(error).__name__}: {error}") from error
        finally:
            os.environ.clear()
            os.environ.update(before)


TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
            "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
OTHERS = {"_", "PWD", "OLDPWD", "SHLVL", "NOTES", "LC_CTYPE", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",
          "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}


FP8_LIBRARY = "with_fp8_library"


def install_fp8_library(folder):
    """Creates a fake package torchao with a version."""
    module = Path(folder, FP8_LIBRARY, "torchao", "__init__.py")
    metadata = Path(folder, FP8_LIBRARY, "torchao-0.9.0.dist-info", "METADATA")
    for path, text in ((module, ""), (metadata, "Name: torchao\nVersion: 0.9.0\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)


def comparable(environment):
    of_ranks = {name for name in environment if name in TORCHRUN or name.startswith("TORCHELASTIC_")}
    leave_out = OTHERS | (of_ranks if "RANK" in environment else set())
    return {name: value for name, value in environment.items()
            if name not in leave_out and not name.startswith("ACC_")}


def ours(acclaunch, words, environment, folder):
    notes = Path(folder) / "notes"
    notes.mkdir()
    run = subprocess.run([*NETWORK, acclaunch, "--compat", "accelerate", *words], cwd=folder,
                         env={**environment, "NOTES": str(notes)}, capture_output=True, text=True)
    seen = [dict(entry.split("=", 1) for entry in note.read_text().split("\0") if entry)
            for note in sorted(notes.iterdir())]
    if run.returncode != 0:
        if seen:
            raise AssertionError(run.stderr)
        raise Refused(run.stderr.strip())
    return len(seen), seen[0]


def compare(real, acclaunch, case):
    words, config, variables = case
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        if config is not None:
            name = "c.json" if config.startswith("{") else "c.yaml"
            Path(folder, name).write_text(config)
            words = ["--config_file", name, *words]
        words = [*words, "/bin/sh", "-c", 'exec env -0 > "$NOTES/${RANK:-0}"']
        install_fp8_library(folder)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "HF_HOME": folder, "LANG": "C.UTF-8",
                       "ACC_SIMULATE_GPUS": "0", **variables}
        reasons = []
        results = []
        for launch in (lambda: real(words, environment, folder),
                       lambda: ours(acclaunch, words, environment, folder)):
            try:
                results.append(launch())
            except Refused as reason:
                results.append(None)
                reasons.append(str(reason))
        if None in results:
            REFUSED.append(reasons)
            return [] if results == [None, None] else [
                f"{who} refuses: {reasons[0]}" for who, result in zip(("accelerate", "acclaunch"), results)
                if result is None]
        (count, wanted), (our_count, found) = results
        if "RANK" in found:
            wanted["RANK"] = "0"  # set by torchrun, which is not run here
        wanted, found = comparable(wanted), comparable(found)
        wanted.setdefault("OMP_NUM_THREADS", found.get("OMP_NUM_THREADS"))  # torchrun sets a default
        differences = [] if count == our_count else [f"{count} workers, acclaunch {our_count}"]
        return differences + [
            f"{name}: accelerate {wanted.get(name)!r}, acclaunch {found.get(name)!r}"
            for name in sorted(wanted.keys() | found.keys()) if wanted.get(name) != found.get(name)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("acclaunch", type=os.path.abspath)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    real = RealLauncher()
    numbers = [options.case] if options.case is not None else range(options.count)
    different = 0
    for number in numbers:
        case = random_case(options.seed, number)
        lines = compare(real.workers, options.acclaunch, case)
        different += bool(lines)
        if lines or options.verbose:
            print(f"--seed {options.seed} --case {number}: {' '.join(case[0])} {case[2] or ''}\n{case[1] or ''}",
                  *(f"  {line}\n" for line in lines), flush=True)
    print(f"{len(numbers)} cases, {different} different, {len(REFUSED)} refused")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    if any(importlib.util.find_spec(name) is None for name in ("accelerate", "deepspeed", "yaml")):
        sys.exit(77)
    import yaml
    main()
