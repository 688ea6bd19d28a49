// SPDX-License-Identifier: Apache-2.0
// Every invalid input gives one message that names its origin, and exit status 2.
#include "plan_fixture.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using test::PlanFixture;
using Words = std::vector<std::string>;

void check_parts(const std::string& message, const Words& parts) {
  INFO("message: " << message);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

TEST_CASE("invalid flags") {
  struct Case {
    Words words;
    Words parts;
  };
  const std::vector<Case> cases = {
      {{}, {"no program to start"}},
      {{"--use_fsdp", "--use_deepspeed", "./train"}, {"--use_fsdp and --use_deepspeed exclude"}},
      {{"--use_parallelism_config", "./train"}, {"--use_parallelism_config needs --use_fsdp"}},
      {{"--num_processes", "two", "./train"},
       {"--num_processes", "an integer 1..1000000", "\"two\""}},
      {{"--num_processes", "0", "./train"}, {"--num_processes", "an integer 1..1000000", "\"0\""}},
      {{"--num_processes", "3", "--num_machines", "2", "--machine_rank", "0", "--main_process_ip",
        "h", "./train"},
       {"--num_processes 3", "multiple of --num_machines 2", "--num_local_processes"}},
      {{"--num_processes", "3", "--num_local_processes", "2", "./train"},
       {"--num_local_processes 2 does not fit --num_processes 3", "1 machine"}},
      {{"--num_processes", "3", "--num_local_processes", "3", "--num_machines", "2",
        "--machine_rank", "0", "--main_process_ip", "h", "./train"},
       {"--num_local_processes 3 does not fit --num_processes 3", "2 machines"}},
      {{"--num_local_processes", "3", "--num_machines", "2", "--machine_rank", "0",
        "--main_process_ip", "h", "./train"},
       {"--num_processes (the number of workers on all machines) is missing"}},
      {{"--num_processes", "4", "--num_machines", "2", "--machine_rank", "2", "--main_process_ip",
        "h", "./train"},
       {"--machine_rank 2 must be below --num_machines 2"}},
      {{"--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "h", "./train"},
       {"--num_processes (the number of workers on all machines) is missing"}},
      {{"--num_processes", "4", "--num_machines", "2", "--min_machines", "1", "--machine_rank", "0",
        "--main_process_ip", "h", "./train"},
       {"--min_machines 1 needs --rdzv_backend c10d"}},
      {{"--num_processes", "4", "--num_machines", "2", "--min_machines", "3", "--rdzv_backend",
        "c10d", "--main_process_ip", "h", "./train"},
       {"--min_machines", "at most num_machines, which is 2", "\"3\""}},
      {{"--num_processes", "4", "--num_machines", "2", "--cpu", "./train", "--text", "a b"},
       {"--machine_rank and --main_process_ip",
        "on machine 0:  acclaunch --num_processes 4 --num_machines 2 --cpu --machine_rank 0 "
        "--main_process_ip host0 --main_process_port 29500 ./train --text 'a b'",
        "on machine 1:  acclaunch --num_processes 4 --num_machines 2 --cpu --machine_rank 1 "
        "--main_process_ip host0 --main_process_port 29500 ./train --text 'a b'"}},
      {{"--num_processes", "4", "--num_machines", "2", "--machine_rank=1", "./train"},
       {"needs --main_process_ip",
        "acclaunch --num_processes 4 --num_machines 2 --machine_rank 1 "
        "--main_process_ip host0"}},
      {{"--num_processes", "2", "--num_machines", "2", "--machine_rank", "0", "--main_process_ip",
        "h", "--main_process_port", "0", "./train"},
       {"--main_process_port 0", "set a port"}},
      {{"--num_processes", "99999999999", "./train"}, {"--num_processes", "99999999999"}},
      {{"--main_process_port", "70000", "./train"}, {"--main_process_port", "0..65535", "70000"}},
      {{"--mixed_precision", "bf61", "./train"}, {"--mixed_precision", "did you mean \"bf16\""}},
      {{"--mixed_precision", "BF16", "./train"}, {"--mixed_precision", "did you mean \"bf16\""}},
      {{"--dynamo_backend", "EAGER", "./train"}, {"--dynamo_backend", "did you mean \"eager\""}},
      {{"--compat", "torchrun", "./train"}, {"--compat must be acclaunch or accelerate"}},
      {{"--engine", "jax", "./train"}, {"--engine must be torch or acc, got \"jax\""}},
      {{"--engine", "acc", "./train"},
       {"--engine acc: the Python package acclaunch is neither in ", "/python nor in "}},
      {{"--mixed_precision", "half", "--num_processes", "two", "--use_fsdp", "--fsdp_version", "3",
        "./missing"},
       {"--mixed_precision", "--num_processes", "--fsdp_version must be an integer 1..2",
        "cannot find program ./missing"}},
      {{"--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARDS", "./train"},
       {"--fsdp_sharding_strategy", "did you mean \"FULL_SHARD\""}},
      {{"--use_fsdp", "--fsdp_min_num_params", "1e8", "./train"}, {"--fsdp_min_num_params", "1e8"}},
      {{"--use_deepspeed", "--zero_stage", "4", "./train"}, {"--zero_stage", "0..3", "\"4\""}},
      {{"--use_fsdp", "--num_processes", "4", "--parallelism_config_dp_shard_size", "3", "./train"},
       {"dp_shard_size 3 does not divide the 4 processes"}},
      {{"--use_fsdp", "--num_processes", "8", "--parallelism_config_dp_shard_size", "2",
        "--parallelism_config_dp_replicate_size", "2", "./train"},
       {"dp_replicate_size 2", "dp_shard_size 2", "8 processes"}},
      {{"--use_fsdp", "--fsdp_version", "2", "--fsdp_state_dict_type", "LOCAL_STATE_DICT",
        "./train"},
       {"--fsdp_state_dict_type", "FSDP 2 has no LOCAL_STATE_DICT"}},
      {{"--use_deepspeed", "--offload_param_device", "nvme", "./train"},
       {"offload_param_nvme_path"}},
      {{"--module", "--no_python", "train"}, {"--module", "--no_python"}},
      {{"--config_file", "missing.yaml", "./train"}, {"cannot read missing.yaml"}},
      {{"no_such_program"}, {"cannot find program no_such_program in PATH"}},
      {{"train"}, {"cannot find program train", "did you mean ./train?"}},
      {{"./missing"}, {"cannot find program ./missing"}},
      {{"missing.py"}, {"cannot find program missing.py"}},
      {{"./notes.txt"}, {"./notes.txt", "not executable"}},
      {{"./bin"}, {"./bin", "not a file"}},
      {{"--max_restarts", "-1", "./train"}, {"--max_restarts must be an integer 0.."}},
      {{"--rdzv_backend", "etcd", "./train"}, {"--rdzv_backend must be static or c10d", "etcd"}},
      {{"--tee", "4", "./train"}, {"--tee must be 0 (none), 1 (stdout)", "\"4\""}},
      {{"--log_dir", "notes.txt", "./train"}, {"--log_dir must be a folder", "notes.txt"}},
      {{"--trace", "notes.txt", "./train"}, {"--trace must be a folder", "notes.txt"}},
      {{"--rdzv_conf", "timeout=soon", "./train"}, {"timeout=SECONDS"}},
      {{"--use_deepspeed", "--deepspeed_config_file", "none.json", "./train"},
       {"--deepspeed_config_file: cannot find none.json in"}},
  };
  for (const Case& each : cases) {
    const PlanFixture fixture;
    fixture.write("notes.txt", "");
    fixture.write("bin/other", "");
    CAPTURE(each.words);
    check_parts(fixture.refusal(each.words), each.parts);
  }
}

TEST_CASE("requested GPUs that the machine does not have") {
  struct Case {
    int physical;
    int visible;
    Words words;
    Words parts;
  };
  const std::vector<Case> cases = {
      {2, 2, {"--gpu_ids", "GPU-zz", "./train"}, {"names GPU GPU-zz", "GPU-aaaa, GPU-bbbb"}},
      {2, 2, {"--gpu_ids", "1,1", "--num_processes", "2", "./train"}, {"names GPU 1 twice"}},
      {1, 1, {"--num_processes", "2", "./train"}, {"2 processes", "is 1", "ACC_SHARE_GPUS=1"}},
      {4, 4, {"--gpu_ids", "0,2", "--num_processes", "3", "./train"}, {"3 processes", "are 2"}},
      {2, 2, {"--gpu_ids", "0,2", "--num_processes", "2", "./train"}, {"names GPU 2", "has 2"}},
      {2, 2, {"--gpu_ids", "a", "./train"}, {"--gpu_ids", "got \"a\""}},
      {2, 2, {"--gpu_ids", ",", "./train"}, {"--gpu_ids", "got \",\""}},
      {2, 2, {"--use_fsdp", "--num_processes", "4", "./train"}, {"4 processes", "are 2"}},
      {2, 2, {"--multi_gpu", "--num_processes", "1", "./train"}, {"--num_processes of at least 2"}},
      {2,
       2,
       {"--multi_gpu", "--cpu", "--num_processes", "2", "./train"},
       {"--cpu and --multi_gpu"}},
  };
  for (const Case& each : cases) {
    PlanFixture fixture;
    fixture.set_gpus(each.physical, each.visible);
    if (each.visible < each.physical) {
      fixture.environment["CUDA_VISIBLE_DEVICES"] = "9";
    }
    CAPTURE(each.words);
    check_parts(fixture.refusal(each.words), each.parts);
  }
}

TEST_CASE("configuration files with faults: every fault is named with its line") {
  struct Case {
    std::string text;
    Words parts;
  };
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 4\n";
  const std::vector<Case> cases = {
      {"num_processes: 2\n", {"c.yaml: distributed_type is missing"}},
      {"", {"distributed_type is missing"}},
      {"distributed_type: FSPD\n", {"c.yaml:1", "got \"FSPD\"", "did you mean \"FSDP\""}},
      {"distributed_type: MEGATRON_LM\n", {"c.yaml:1", "MEGATRON_LM is not supported"}},
      {"distributed_type: XLA\n", {"c.yaml:1", "XLA is not supported"}},
      {"compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n",
       {"c.yaml:1", "AMAZON_SAGEMAKER is not supported"}},
      {"distributed_type: 'NO'\nnum_proceses: 2\n",
       {"c.yaml:2: unknown key \"num_proceses\"", "did you mean \"num_processes\""}},
      {"distributed_type: 'NO'\nmax_restarts: 2\n", {"c.yaml:2", "only the flag --max_restarts"}},
      {"distributed_type: 'NO'\nzero_stage: 2\n", {"c.yaml:2", "belongs in deepspeed_config"}},
      {"distributed_type: FSDP\n",
       {"--num_processes (the number of workers on all machines) is missing", "c.yaml"}},
      {fsdp + "fsdp_config:\n  fsdp_shard_strategy: NO_SHARD\n",
       {"c.yaml:4: unknown key \"fsdp_shard_strategy\" in fsdp_config",
        "did you mean \"fsdp_sharding_strategy\""}},
      {fsdp + "fsdp_config:\n  fsdp_offload_params: maybe\n",
       {"c.yaml:4: fsdp_offload_params must be true or false, got \"maybe\""}},
      {fsdp +
           "fsdp_config:\n  fsdp_offload_params: maybe\n  fsdp_bogus: 1\nmixed_precision: half\n",
       {"c.yaml:4", "c.yaml:5", "c.yaml:6: mixed_precision must be no, fp16, bf16 or fp8"}},
      {fsdp + "fsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n"
              "  fsdp_sync_module_states: false\n",
       {"c.yaml:4: --fsdp_cpu_ram_efficient_loading true needs --fsdp_sync_module_states true",
        "c.yaml:5 says false"}},
      {fsdp + "deepspeed_config:\n  zero_stage: 3\n",
       {"c.yaml:4: zero_stage applies in DeepSpeed mode only, but distributed_type is FSDP (",
        "c.yaml:1"}},
      {"distributed_type: MULTI_GPU\nnum_processes: 2\nuse_cpu: true\n",
       {"c.yaml:3: use_cpu true contradicts ", "c.yaml:1: distributed_type MULTI_GPU"}},
      {"distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 0\n",
       {"c.yaml:3: gpu_ids 0 is one GPU", "--gpu_ids", "c.yaml:1"}},
      {fsdp + "num_machines: 3\nmachine_rank: 3\nmain_process_ip: h\n",
       {"c.yaml:4: machine_rank 3 must be below", "c.yaml:3: num_machines 3"}},
      {fsdp + "num_machines: 3\nmachine_rank: 2\nmain_process_ip: h\n",
       {"c.yaml:2: num_processes 4 is the total", "multiple of", "c.yaml:3: num_machines 3"}},
      {"distributed_type: FSPD\nnum_processes: many\nmixed_precision: half\n"
       "fsdp_config:\n  fsdp_offload_param: true\n  fsdp_version: 3\n",
       {"c.yaml:1: distributed_type", "c.yaml:2: num_processes", "c.yaml:3: mixed_precision",
        "c.yaml:5: unknown key \"fsdp_offload_param\"", "did you mean \"fsdp_offload_params\"",
        "c.yaml:6: fsdp_version"}},
      {fsdp + "profile: me\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n",
       {"c.yaml:3: profile: SageMaker", "c.yaml:4: megatron_lm_config: Megatron-LM"}},
      {fsdp + "fsdp_config: 3\n", {"c.yaml:3: fsdp_config must hold lines"}},
      {fsdp + "machine_rank: [0]\nuse_cpu: {a: 1}\n",
       {"c.yaml:3: machine_rank must be an integer", "got a list",
        "c.yaml:4: use_cpu must be true or false, got a block"}},
      {fsdp + "fsdp_config:\n  fsdp_version: 1\n  version: 2\n",
       {"c.yaml:5: version contradicts ", "c.yaml:4: fsdp_version, which is the same setting"}},
      {fsdp + "fsdp_config:\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
              "  fsdp_backward_prefetch_policy: BACKWARD_POST\n",
       {"c.yaml:5: fsdp_backward_prefetch_policy contradicts "}},
      {fsdp + "engine: jax\n", {"c.yaml:3: engine must be torch or acc, got \"jax\""}},
      {fsdp + "engine: auto\n", {"c.yaml:3: engine must be torch or acc, got \"auto\""}},
      {fsdp + "engine: acc\n", {"c.yaml:3: engine acc: the Python package acclaunch is neither"}},
      {fsdp + "num_processes: 2\n", {"c.yaml:3: key \"num_processes\" is given twice"}},
      {fsdp + "tpu_use_cluster: true\n", {"c.yaml:3: tpu_use_cluster: TPUs are not supported"}},
      {fsdp + "fsdp_config:\n  - [\n", {"c.yaml:", "not valid YAML"}},
      {"just words\n", {"c.yaml:1", "key: value"}},
  };
  for (const Case& each : cases) {
    const PlanFixture fixture;
    const std::string path = fixture.write("c.yaml", each.text).string();
    CAPTURE(each.text);
    check_parts(fixture.refusal({"--config_file", path, "./train"}), each.parts);
  }
}

TEST_CASE("DeepSpeed JSON files with faults") {
  struct Case {
    std::string text;
    Words parts;
  };
  const std::vector<Case> cases = {
      {"{}", {"d.json: zero_optimization is missing"}},
      {"{\n\"zero_optimization\": {\n\"stage\": 3,\n\"stage3_prefetch\": 1}}",
       {"d.json:4: unknown key \"stage3_prefetch\" in zero_optimization"}},
      {"{\"zero_optimization\": {\"stage\": 5}}", {"d.json:1", "0..3", "\"5\""}},
      {"{\"zero_optimization\": {},\n\"gradient_acumulation_steps\": 2}",
       {"d.json:2", "did you mean \"gradient_accumulation_steps\""}},
      {"{\"zero_optimization\": {\"mics_shard_size\": 2}}", {"mics_shard_size was removed"}},
      {"{\"zero_optimization\": {},\n\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}",
       {"d.json:2", "cannot both be enabled"}},
      {"{\"zero_optimization\": {},\n\"gradient_clipping\": 0.5}",
       {"d.json:2: gradient_clipping 0.5 contradicts gradient_clipping 1.0 (--gradient_clipping)"}},
      {"{\"zero_optimization\": {},\n\"train_batch_size\": 6,\n\"train_micro_batch_size_per_gpu\": "
       "2}",
       {"d.json:2: train_batch_size 6 must be a multiple of 2 (train_micro_batch_size_per_gpu) x 4 "
        "processes = 8"}},
      {"{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 3, "
       "\"zero_hpz_partition_size\": 3}}",
       {"zero_hpz_partition_size 3 (", "does not divide the 4 processes"}},
      {"{\"zero_optimization\": {\n\"stage\": 3,,}}", {"d.json:2: not valid JSON"}},
      {"[]", {"d.json: expected an object"}},
  };
  for (const Case& each : cases) {
    const PlanFixture fixture;
    fixture.write("d.json", each.text);
    CAPTURE(each.text);
    check_parts(fixture.refusal({"--use_deepspeed", "--num_processes", "4", "--gradient_clipping",
                                 "1", "--deepspeed_config_file", "d.json", "./train"}),
                each.parts);
  }
}

}  // namespace
}  // namespace acc::launcher
