#!/usr/bin/env python3
"""Records cases of this folder from the real `accelerate launch` into cases.json (see README.md for the format).

    record.py [--launcher 'accelerate launch'] [NAME ...]     all of CASES, or those named

Needs Accelerate 1.15, torch and DeepSpeed, no library for fp8, and a machine without GPUs. Run it in
a network namespace of its own. Afterwards `check.py --reference` must pass.
"""
import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import cases
import check

# Values that differ in every run.
RANDOM = {"TORCHELASTIC_ERROR_FILE"}
SIMPLE = "distributed_type: 'NO'\n"
FSDP = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
FSDP_2 = FSDP + "  fsdp_version: 2\n"
DEEPSPEED = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
MULTI_GPU = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
PARALLEL = "--use_fsdp --fsdp_version 2 --use_parallelism_config --num_processes 2 "
SIZE = "parallelism_config:\n  parallelism_config_"
CRASH = "must refuse, wording free"


def case(name, flags, yaml=None, words=None, accident=None, note=None, **parent_env):
    """`words` of the message: the launch is refused. `accident`: it crashes."""
    return {"name": name, "launcher": "accelerate launch", "yaml": yaml,
            "argv": [*(["--config_file", "CONFIG"] if yaml else []), *shlex.split(flags), "PROGRAM"],
            "parent_env": {"OMP_NUM_THREADS": "2", **parent_env}, "words": words,
            **({"accident": accident} if accident else {}), **({"note": note} if note else {})}


CASES = [
    # parallelism_config: the launcher checks types of flags, and compares two sizes with 1
    case("parallelism_sizes_need_not_fit", PARALLEL + "--parallelism_config_dp_shard_size 3 "
         "--parallelism_config_tp_size 5"),
    case("parallelism_sizes_zero_and_negative", PARALLEL + "--parallelism_config_dp_shard_size 0 "
         "--parallelism_config_tp_size -1 --parallelism_config_cp_size -2"),
    case("parallelism_without_fsdp_refused", "--use_parallelism_config --num_processes 2",
         words=["--use_fsdp", "--fsdp_version"]),
    case("parallelism_multi_gpu_flag_refused", "--multi_gpu --use_parallelism_config --num_processes 2",
         words=["--use_fsdp", "--fsdp_version"]),
    case("parallelism_flag_with_fsdp_yaml_refused", "--use_parallelism_config", FSDP_2,
         words=["--use_fsdp", "--fsdp_version"], note="only the flag --use_fsdp counts here"),
    case("parallelism_size_word_refused", PARALLEL + "--parallelism_config_tp_size two",
         words=["--parallelism_config_tp_size", "two"]),
    case("parallelism_size_float_refused", PARALLEL + "--parallelism_config_cp_size 2.0",
         words=["--parallelism_config_cp_size", "2.0"]),
    case("parallelism_cp_backend_refused", PARALLEL + "--parallelism_config_cp_backend deepspeed",
         words=["--parallelism_config_cp_backend", "deepspeed"]),
    case("parallelism_cp_strategy_unknown", PARALLEL + "--parallelism_config_cp_size 2 "
         "--parallelism_config_cp_comm_strategy ring"),
    case("parallelism_sp_size_2", PARALLEL + "--parallelism_config_sp_size 2 "
         "--parallelism_config_sp_seq_length_is_variable false",
         note="bool('false') is True"),
    case("parallelism_yaml_null_sizes", "", FSDP_2 + SIZE + "tp_size: null\n"
         "  parallelism_config_dp_shard_size:\n  parallelism_config_dp_replicate_size: '2'\n"),
    case("parallelism_yaml_cp_size_null", "", FSDP_2 + SIZE + "cp_size: null\n", accident=CRASH),
    case("parallelism_yaml_cp_size_quoted", "", FSDP_2 + SIZE + "cp_size: '2'\n", accident=CRASH),
    case("parallelism_yaml_words", "", FSDP_2 + SIZE + "cp_backend: Ring\n  parallelism_config_sp_size: 2\n"
         "  parallelism_config_sp_seq_length: null\n"),
    case("parallelism_yaml_multi_gpu", "", MULTI_GPU + SIZE + "dp_shard_size: 2\n",
         note="the block counts in every mode of ranks that the file chooses"),
    case("parallelism_yaml_deepspeed", "", DEEPSPEED + "  zero_stage: 2\n" + SIZE + "sp_size: 2\n"),
    case("parallelism_yaml_mode_flag", "--use_fsdp", FSDP_2 + SIZE + "dp_shard_size: 2\n"),
    # sharding strategies and other words that only the program looks at
    case("fsdp_strategy_unknown_flag", "--use_fsdp --num_processes 2 --fsdp_sharding_strategy HALF_SHARD"),
    case("fsdp_strategy_lower_case", "--use_fsdp --num_processes 2 --fsdp_sharding_strategy hybrid_shard"),
    case("fsdp_strategy_yaml_unknown", "", FSDP + "  fsdp_sharding_strategy: Half Shard\n"),
    case("fsdp_strategy_yaml_number_9", "", FSDP + "  fsdp_sharding_strategy: 9\n"),
    case("fsdp_yaml_unknown_words", "", FSDP + "  fsdp_auto_wrap_policy: wrap\n"
         "  fsdp_backward_prefetch: ahead\n  fsdp_state_dict_type: Half\n  fsdp_offload_params: maybe\n"
         "  fsdp_version: 3\n  fsdp_min_num_params: 1e8\n"),
    case("fsdp_flags_unknown_words", "--use_fsdp --num_processes 2 --fsdp_auto_wrap_policy wrap "
         "--fsdp_offload_params Maybe --fsdp_state_dict_type 7 --fsdp_use_orig_params 2"),
    case("fsdp_yaml_class_list", "", FSDP + "  fsdp_transformer_layer_cls_to_wrap:\n  - Block\n  - Layer\n",
         note="the text of a Python list"),
    case("fsdp2_yaml_reshard_words", "", FSDP_2 + "  fsdp_reshard_after_forward: FULL_SHARD\n"),
    case("fsdp2_flag_reshard_word", "--use_fsdp --fsdp_version 2 --num_processes 2 "
         "--fsdp_reshard_after_forward NO_RESHARD"),
    # null, empty and quoted values of a file
    case("fsdp_yaml_nulls", "", FSDP + "".join(f"  fsdp_{key}: null\n" for key in (
        "version", "sharding_strategy", "reshard_after_forward", "offload_params", "min_num_params",
        "auto_wrap_policy", "transformer_layer_cls_to_wrap", "backward_prefetch", "state_dict_type",
        "forward_prefetch", "use_orig_params", "cpu_ram_efficient_loading", "sync_module_states",
        "activation_checkpointing", "activation_checkpointing_offload"))),
    case("fsdp_yaml_null_keeps_parents", "", FSDP + "  fsdp_state_dict_type:\n  fsdp_offload_params: ~\n",
         FSDP_STATE_DICT_TYPE="anything", FSDP_OFFLOAD_PARAMS="true"),
    case("fsdp_yaml_sync_null_refused", "", FSDP + "  fsdp_sync_module_states: null\n",
         words=["fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"]),
    case("fsdp_yaml_sync_false_refused", "", FSDP + "  fsdp_sync_module_states: false\n",
         words=["fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"],
         note="the default of ram loading is true"),
    case("fsdp_yaml_sync_quoted_false", "", FSDP + "  fsdp_sync_module_states: 'false'\n"),
    case("fsdp_yaml_empty_texts", "", FSDP + "  fsdp_sharding_strategy: ''\n  fsdp_auto_wrap_policy: ''\n"
         "  fsdp_use_orig_params: ''\n"),
    case("yaml_null_blocks", "--num_processes 1", "distributed_type: FSDP\nnum_processes: null\nfsdp_config:\n"
         "deepspeed_config: null\ndynamo_config: ~\nparallelism_config: null\nfp8_config:\n"
         "mixed_precision: null\nmain_process_port: null\ngpu_ids: null\nuse_cpu: null\ndebug: null\n"),
    case("yaml_use_cpu_null_simple", "", SIMPLE + "use_cpu: null\n", accident=CRASH),
    case("yaml_num_machines_null", "", SIMPLE + "num_machines: null\n", accident=CRASH),
    case("yaml_num_processes_null_simple", "", SIMPLE + "num_processes: null\n"),
    case("yaml_num_processes_quoted", "", FSDP.replace("2", "'2'", 1) + "  fsdp_version: '2'\n"),
    case("yaml_num_processes_quoted_simple", "", SIMPLE + "num_processes: '1'\n", accident=CRASH),
    case("yaml_debug_quoted_no", "", SIMPLE + "debug: 'no'\n", note="a text is true"),
    case("yaml_type_lower_case_refused", "", "distributed_type: fsdp\nnum_processes: 2\n", words=["fsdp"]),
    case("yaml_type_null", "--num_processes 1", "distributed_type: null\n"),
    case("yaml_environment_null_refused", "", "compute_environment: null\n" + SIMPLE, accident=CRASH),
    case("dynamo_yaml_nulls_fsdp", "", FSDP + "  fsdp_version: 1\ndynamo_config:\n  dynamo_backend: null\n"
         "  dynamo_mode: null\n  dynamo_use_dynamic: null\n  dynamo_use_fullgraph: 'yes'\n"),
    case("dynamo_yaml_mode_null_simple", "", SIMPLE + "dynamo_config:\n  dynamo_mode: null\n", accident=CRASH),
    case("ds_yaml_nulls", "", DEEPSPEED + "".join(f"  {key}: null\n" for key in (
        "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device",
        "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_moe_layer_cls_names",
        "deepspeed_multinode_launcher"))),
    case("ds_yaml_auto", "", DEEPSPEED + "  gradient_accumulation_steps: auto\n  gradient_clipping: AUTO\n"
         "  zero_stage: 3\n"),
    case("ds_yaml_nvme_without_path", "", DEEPSPEED + "  zero_stage: 3\n  offload_param_device: nvme\n"
         "  offload_optimizer_device: NVMe\n"),
    case("ds_flags_nvme_without_path", "--use_deepspeed --num_processes 2 --zero_stage 3 "
         "--offload_param_device nvme --offload_optimizer_device disk"),
    case("ds_flags_out_of_range", "--use_deepspeed --num_processes 2 --zero_stage 7 "
         "--gradient_accumulation_steps 0 --gradient_clipping 100000 --zero3_init_flag Maybe"),
    case("ds_flag_accumulation_auto_refused", "--use_deepspeed --num_processes 2 "
         "--gradient_accumulation_steps auto", words=["--gradient_accumulation_steps", "auto"]),
    case("variables_in_capitals_too", "--use_fsdp --num_processes 1", None,
         note="Accelerate sets every variable again under its name in capitals", lower_case="kept"),
    # fp8 without a library for it
    case("mixed_fp8_no_library_flag", "--mixed_precision fp8 --num_processes 1", words=["fp8"]),
    case("mixed_fp8_no_library_yaml", "", FSDP + "  fsdp_version: 2\nmixed_precision: fp8\n"
         "fp8_config:\n  backend: AO\n", words=["fp8"]),
]


class Recorder(check.Run):
    """Runs a case without expecting anything of it."""

    def expected(self):
        """The case with what the launcher did."""
        case = {key: value for key, value in self.case.items() if key != "words"} | {"source": "run"}
        words, crashes = self.case["words"], "accident" in self.case
        if words is not None or crashes:
            missing = [word for word in words or [] if not self.says(word)]
            assert self.codes[0] != 0 and not missing, (self.codes, missing, self.texts)
            return case | {"error": {"exit": self.codes[0], "message_contains": words or []}}
        notes = self.collect()
        assert self.codes[0] == 0 and notes, (self.codes, self.texts)
        case |= {"exit": 0, "ranks": [self.rank(index, note) for index, note in notes]}
        filled = re.findall(r"`(--\w+)` was set to a value of `'?(\w+)'?`", "\n".join(self.texts))
        return case | ({"defaulted": dict(filled)} if filled else {})

    def rank(self, index, note):
        env = self.changes(note["env"], self.parts[index][1])
        words = ["PROGRAM" if word == "prog.py" else "<python>" if check.PYTHON.search(word) else word
                 for word in note["command"]]
        return {"env": {name: "<any>" if name in RANDOM else env[name] for name in sorted(env)},
                "command": words, "cwd": self.normal(note["cwd"])}

    def record(self):
        self.tmp = Path(os.path.realpath(tempfile.mkdtemp(prefix="launch_env_")))
        self.marker = f"DUMP_DIR={self.tmp}/".encode()
        try:
            self.prepare()
            assert self.launch(self.opt.launcher), self.diffs
            return self.expected()
        finally:
            shutil.rmtree(self.tmp, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--launcher", default="accelerate launch")
    parser.add_argument("--timeout", type=float, default=300)
    options = parser.parse_args()
    options.launcher = check.words(options.launcher)
    failed, recorded = 0, cases.read()
    for chosen in CASES:
        if options.names and chosen["name"] not in options.names:
            continue
        try:
            recorded[chosen["name"]] = Recorder(chosen, options).record()
        except AssertionError as error:
            failed += 1
            print(f"{chosen['name']}: {error}", flush=True)
            continue
        print(chosen["name"], flush=True)
    cases.write(recorded)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
