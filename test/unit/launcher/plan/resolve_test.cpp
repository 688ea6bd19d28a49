// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/explain.hpp"
#include "plan_fixture.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::contains;
using settings::Device;
using settings::Strategy;
using test::PlanFixture;
using Words = std::vector<std::string>;

std::string all_notices(const LaunchPlan& plan) {
  std::string text;
  for (const std::string& line : plan.notices) {
    text += line + "\n";
  }
  return text;
}

TEST_CASE("each shipped configuration loads and selects its mode") {
  struct Case {
    std::string name;
    Strategy strategy;
    int hpz;
    std::string origin;
  };
  for (const auto& [name, strategy, hpz, origin] : {
           Case{"fsdp_full_shard", Strategy::full_shard, 1, "fsdp"},
           Case{"fsdp_shard_grad_op", Strategy::shard_grad_op, 1, "fsdp"},
           Case{"fsdp_no_shard", Strategy::no_shard, 1, "fsdp"},
           Case{"fsdp_hybrid_shard", Strategy::hybrid_shard, 1, "fsdp"},
           Case{"fsdp_hybrid_shard_zero2", Strategy::hybrid_shard_zero2, 1, "fsdp"},
           Case{"zero0", Strategy::no_shard, 1, "deepspeed"},
           Case{"zero1", Strategy::shard_optimizer, 1, "deepspeed"},
           Case{"zero2", Strategy::shard_grad_op, 1, "deepspeed"},
           Case{"zero3", Strategy::full_shard, 1, "deepspeed"},
           Case{"zero3_hpz", Strategy::full_shard, 2, "deepspeed"},
       }) {
    CAPTURE(name);
    const PlanFixture fixture;
    const std::string config = std::string(ACC_SOURCE_DIR) + "/configs/" + name + ".yaml";
    const auto runtime = fixture.runtime({"--config_file", config, "./train"}, 3);
    CHECK(runtime.sharding.strategy == strategy);
    CHECK(runtime.sharding.hpz_partition_size == hpz);
    CHECK(runtime.sharding.state_dict_type == settings::StateDictType::sharded);
    CHECK(runtime.sharding.gradient_accumulation_steps == 1);
    CHECK_FALSE(runtime.sharding.gradient_clipping.has_value());
    CHECK(runtime.sharding.mixed_precision == settings::MixedPrecision::no);
    CHECK(runtime.origin == origin);
    CHECK(runtime.identity.rank == 3);
    CHECK(runtime.identity.world_size == 4);
    if (origin == "fsdp") {
      CHECK(runtime.sharding.transformer_layer_classes.empty());  // applies to any model
    }
    // Each of them runs with a single worker too.
    CHECK(fixture.runtime({"--config_file", config, "--num_processes", "1", "./train"})
              .identity.world_size == 1);
  }
}

TEST_CASE("the guide's file loads unchanged, with notices about translated keys") {
  const PlanFixture fixture;
  const std::string config = std::string(ACC_TEST_DATA) + "/configs/fsdp_guide.yaml";
  const LaunchPlan plan = fixture.plan({"--config_file", config, "./train"});
  CHECK(contains(all_notices(plan),
                 "fsdp_guide.yaml:7: fsdp_backward_prefetch_policy is read as "
                 "fsdp_backward_prefetch"));
  const auto runtime = settings::settings_from_environment(fixture.worker(plan, 1));
  CHECK(runtime.sharding.strategy == Strategy::full_shard);
  CHECK(runtime.sharding.backward_prefetch == settings::BackwardPrefetch::backward_pre);
  CHECK(runtime.sharding.mixed_precision == settings::MixedPrecision::bf16);
  CHECK(runtime.sharding.transformer_layer_classes == Words{"BertLayer"});
}

TEST_CASE("flags override the file, the file overrides defaults, and each value has its source") {
  const PlanFixture fixture;
  const auto config = fixture.write("c.yaml",
                                    "distributed_type: FSDP\nnum_processes: 4\n"
                                    "fsdp_config:\n  sharding_strategy: SHARD_GRAD_OP\n");
  const Words file = {"--config_file", config.string(), "./train"};
  LaunchPlan plan = fixture.plan(file);
  CHECK(plan.settings.text("fsdp_sharding_strategy"_key) == "SHARD_GRAD_OP");
  CHECK(contains(plan.settings.source("fsdp_sharding_strategy"_key).where, "c.yaml:4"));
  CHECK(describe(plan.settings.source("fsdp_forward_prefetch"_key)) == "default");
  plan = fixture.plan({"--config_file", config.string(), "--fsdp-sharding-strategy=NO_SHARD",
                       "--num_processes", "2", "./train"});
  CHECK(plan.settings.text("fsdp_sharding_strategy"_key) == "NO_SHARD");
  CHECK(plan.settings.source("fsdp_sharding_strategy"_key).where == "--fsdp-sharding-strategy");
  CHECK(plan.layout.num_processes == 2);
  const std::string text = explain(plan, fixture.environment);
  CHECK(contains(text, "fsdp_sharding_strategy"));
  CHECK(contains(text, "--fsdp-sharding-strategy"));
  CHECK(contains(text, "2 processes on 1 machine(s)"));
}

TEST_CASE("device: --cpu selects the CPU; FSDP and ZeRO use GPUs if there are any") {
  PlanFixture fixture;
  const Words fsdp = {"--use_fsdp", "--num_processes", "2", "./train"};
  CHECK(fixture.plan(fsdp).device == Device::cpu);
  CHECK(contains(all_notices(fixture.plan(fsdp)),
                 "no GPU on this machine: the workers run on the CPU"));
  const LaunchPlan cpu = fixture.plan({"--cpu", "--use_fsdp", "--num_processes", "2", "./train"});
  CHECK(cpu.mode == Mode::fsdp);
  CHECK_FALSE(contains(all_notices(cpu), "no GPU"));
  fixture.set_gpus(2, 2);
  CHECK(fixture.plan(fsdp).device == Device::cuda);
  CHECK(fixture.plan({"--cpu", "--use_fsdp", "--num_processes", "4", "./train"}).device ==
        Device::cpu);
  CHECK(fixture.runtime(fsdp).device == Device::cuda);
  CHECK(fixture.plan({"./train"}).layout.num_processes == 2);
  CHECK(fixture.plan({"./train"}).mode == Mode::multi_gpu);
}

TEST_CASE("GPU ids become CUDA_VISIBLE_DEVICES") {
  PlanFixture fixture;
  fixture.set_gpus(4, 4);
  const LaunchPlan plan =
      fixture.plan({"--multi_gpu", "--num_processes", "2", "--gpu_ids", "1,3", "./train"});
  CHECK(fixture.worker(plan, 0).at("CUDA_VISIBLE_DEVICES") == "1,3");
}

TEST_CASE("GPUs by number or UUID, shared on request, and shown by explain") {
  PlanFixture fixture;
  fixture.set_gpus(2, 2);
  fixture.facts.gpu.devices[1].numa_node = 0;
  for (std::size_t cpu = 4; cpu < 8; ++cpu) {
    fixture.facts.cpus[cpu].numa_node = 1;
  }
  fixture.environment["ACC_SHARE_GPUS"] = "1";
  const LaunchPlan plan = fixture.plan({"--use_fsdp", "--num_processes", "3", "--gpu_ids",
                                        "GPU-bbbb,0", "--enable_cpu_affinity", "./train"});
  CHECK(plan.device == Device::cuda);
  CHECK(fixture.worker(plan, 0).at("CUDA_VISIBLE_DEVICES") == "GPU-bbbb,0");
  CHECK(fixture.worker(plan, 0).at("ACCELERATE_CPU_AFFINITY") == "1");
  CHECK(plan.binding.workers[0].gpu == 1);
  CHECK(plan.binding.workers[0].cpus == std::vector<int>{0, 1, 2, 3});
  CHECK(plan.binding.workers[1].gpu == 0);
  CHECK(plan.binding.workers[2].gpu == 1);
  CHECK(contains(all_notices(plan), "workers of GPU 0 are not bound, because its NUMA node"));
  const std::string text = explain(plan, fixture.environment);
  CHECK(contains(text, "gpus        0  GPU model  GPU-aaaa"));
  CHECK(contains(text, "driver 580.1"));
  CHECK(contains(text, "workers     local rank 0 on GPU 1, CPUs 0-3 of NUMA node 0\n"));
  CHECK(contains(text, "            local rank 1 on GPU 0, not bound\n"));
  fixture.set_gpus(0, 0);
  CHECK_FALSE(contains(explain(fixture.plan({"./train"}), fixture.environment), "gpus  "));
}

TEST_CASE("accumulation and clipping work in every mode") {
  const PlanFixture fixture;
  for (const Words& mode : {Words{}, Words{"--use_fsdp"}, Words{"--use_deepspeed"}}) {
    Words words = mode;
    words.insert(words.end(),
                 {"--gradient_accumulation_steps", "4", "--gradient_clipping", "2", "./train"});
    const auto sharding = fixture.runtime(words).sharding;
    CHECK(sharding.gradient_accumulation_steps == 4);
    CHECK(sharding.gradient_clipping == 2.0);
  }
}

TEST_CASE("shard groups: the machine by default, else what the parallelism config says") {
  const PlanFixture fixture;
  const Words hybrid = {"--use_fsdp", "--num_processes", "4", "--fsdp_sharding_strategy",
                        "HYBRID_SHARD"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("./train");
    return words;
  };
  CHECK(contains(all_notices(fixture.plan(with(hybrid, {}))), "on one machine: all 4 processes"));
  CHECK(fixture.runtime(with(hybrid, {})).sharding.shard_size == 0);
  const auto sized = fixture.runtime(with(hybrid, {"--parallelism_config_dp_shard_size", "2"}));
  CHECK(sized.sharding.strategy == Strategy::hybrid_shard);
  CHECK(sized.sharding.shard_size == 2);
  const auto notices = [&](const Words& more) {
    return all_notices(fixture.plan(with(hybrid, more)));
  };
  CHECK(contains(notices({"--fsdp_version", "2", "--parallelism_config_dp_shard_size", "2"}),
                 "shard groups of 2 of 4 processes"));
  CHECK(contains(
      notices({"--fsdp_version", "2", "--parallelism_config_dp_shard_size", "2", "--num_machines",
               "2", "--min_machines", "1", "--rdzv_backend", "c10d", "--main_process_ip", "host"}),
      "shard groups of 2 processes"));
  const auto full = fixture.runtime({"--use_fsdp", "--num_processes", "4", "--fsdp_version", "2",
                                     "--parallelism_config_dp_replicate_size", "2", "./train"});
  CHECK(full.sharding.strategy == Strategy::hybrid_shard);
  CHECK(full.sharding.shard_size == 2);
  const auto two = fixture.plan(with(
      hybrid, {"--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "10.0.0.1"}));
  CHECK_FALSE(contains(all_notices(two), "on one machine"));
  const auto identity = settings::settings_from_environment(fixture.worker(two, 1)).identity;
  CHECK(identity.rank == 3);
  CHECK(identity.local_world_size == 2);
  CHECK(identity.node_rank == 1);
  CHECK(identity.master_addr == "10.0.0.1");
}

TEST_CASE("DeepSpeed JSON: auto is filled from flags; the file is found next to the YAML file") {
  const PlanFixture fixture;
  const auto config = fixture.write("conf/z.yaml",
                                    "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                                    "deepspeed_config:\n  deepspeed_config_file: z.json\n");
  fixture.write(
      "conf/z.json",
      R"({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": 2e6,
    "stage3_prefetch_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})");
  const LaunchPlan plan =
      fixture.plan({"--config_file", config.string(), "--gradient_accumulation_steps", "2",
                    "--gradient_clipping", "0.5", "--mixed_precision", "bf16", "./train"});
  const auto sharding = settings::settings_from_environment(fixture.worker(plan, 0)).sharding;
  CHECK(sharding.strategy == Strategy::full_shard);
  CHECK(sharding.reduce_bucket_size == 2'000'000);
  CHECK(sharding.prefetch_bucket_size == 50'000'000);
  CHECK(sharding.overlap_comm);
  CHECK(sharding.offload_optimizer == settings::OffloadDevice::cpu);
  CHECK(sharding.gradient_accumulation_steps == 2);
  CHECK(sharding.gradient_clipping == 0.5);
  CHECK(sharding.mixed_precision == settings::MixedPrecision::bf16);
  CHECK(contains(all_notices(plan), "left to the program: optimizer"));
  CHECK(fixture.worker(plan, 0).at("ACCELERATE_DEEPSPEED_CONFIG_FILE") ==
        (fixture.folder() / "conf/z.json").string());
}

TEST_CASE("the machine rank in a file for one machine does not count for two machines") {
  const PlanFixture fixture;
  const std::string text = "distributed_type: FSDP\nnum_processes: 4\nmachine_rank: 0\n";
  const std::string one = fixture.write("one.yaml", text + "num_machines: 1\n").string();
  const std::string two = fixture.write("two.yaml", text + "num_machines: 2\n").string();
  const auto refusal = fixture.refusal(
      {"--config_file", one, "--num_machines", "2", "--main_process_ip", "h", "./train"});
  CHECK(contains(refusal, "--num_machines 2 needs --machine_rank"));
  CHECK(fixture.plan({"--config_file", two, "--main_process_ip", "h", "./train"})
            .layout.machine_rank == 0);
}

TEST_CASE("a mode flag overrides the file's mode, and the other block has no effect") {
  const PlanFixture fixture;
  const std::string config = fixture
                                 .write("c.yaml",
                                        "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                                        "deepspeed_config:\n  zero_stage: 3\n")
                                 .string();
  const LaunchPlan plan = fixture.plan({"--config_file", config, "--use_fsdp", "./train"});
  CHECK(plan.mode == Mode::fsdp);
  CHECK(contains(all_notices(plan), "c.yaml:4: zero_stage has no effect with --use_fsdp"));
}

TEST_CASE("cores are divided among the workers of a machine unless threads are set") {
  PlanFixture fixture;
  const Words words = {"--num_processes", "4", "./train"};
  CHECK(fixture.worker(fixture.plan(words), 0).at("OMP_NUM_THREADS") == "2");
  fixture.set_cores(2);
  CHECK(fixture.worker(fixture.plan(words), 0).at("OMP_NUM_THREADS") == "1");
  fixture.environment["OMP_NUM_THREADS"] = "7";
  CHECK(fixture.worker(fixture.plan(words), 0).at("OMP_NUM_THREADS") == "7");
  CHECK(fixture.worker(fixture.plan({"--num_cpu_threads_per_process", "3", "./train"}), 0)
            .at("OMP_NUM_THREADS") == "3");
}

TEST_CASE("programs: *.py under Python; a bare name from PATH, then next to acclaunch") {
  PlanFixture fixture;
  fixture.write("train.py", "");
  fixture.write("bin/train_gpt", "#!/bin/sh\n", true);
  fixture.write("path/python3", "#!/bin/sh\n", true);
  fixture.write("my_python", "#!/bin/sh\n", true);
  fixture.environment["PATH"] = (fixture.folder() / "path").string();
  const std::string python = (fixture.folder() / "path/python3").string();
  CHECK(fixture.plan({"train.py", "-x"}).command == Words{python, "train.py", "-x"});
  CHECK(fixture.plan({"--use_fsdp", "train.py"}).command == Words{python, "-u", "train.py"});
  CHECK(fixture.plan({"-m", "train"}).command == Words{python, "-m", "train"});
  CHECK(fixture.plan({"./train", "a b"}).command == Words{"./train", "a b"});
  CHECK(fixture.plan({"train_gpt"}).command ==
        Words{(fixture.folder() / "bin/train_gpt").string()});
  fixture.environment["PYTHON_EXEC"] = "./my_python";
  CHECK(fixture.plan({"train.py"}).command == Words{"./my_python", "train.py"});
}

TEST_CASE("settings of an outer acclaunch do not reach the workers of an inner one") {
  PlanFixture fixture;
  fixture.environment["ACC_ZERO_STAGE"] = "3";
  fixture.environment["ACC_MODE"] = "deepspeed";
  fixture.environment["ACC_GRADIENT_CLIPPING"] = "1";
  const auto runtime = fixture.runtime({"./train"});
  CHECK(runtime.origin == "none");
  CHECK(runtime.sharding == settings::ShardingSettings{});
}

TEST_CASE("variables that Accelerate passes on unchanged count as settings") {
  PlanFixture fixture;
  fixture.environment["FSDP_STATE_DICT_TYPE"] = "SHARDED_STATE_DICT";
  fixture.environment["FSDP_SHARDING_STRATEGY"] = "NO_SHARD";  // overwritten by Accelerate
  const LaunchPlan plan = fixture.plan({"--use_fsdp", "./train"});
  CHECK(describe(plan.settings.source("fsdp_state_dict_type"_key)) ==
        "environment FSDP_STATE_DICT_TYPE");
  const auto sharding = settings::settings_from_environment(fixture.worker(plan, 0)).sharding;
  CHECK(sharding.state_dict_type == settings::StateDictType::sharded);
  CHECK(sharding.strategy == Strategy::full_shard);
}

TEST_CASE("the order and the record of samples are passed on alike in all front ends") {
  for (const FrontEnd* front_end :
       {&accelerate_front_end(), &torchrun_front_end(), &deepspeed_front_end()}) {
    PlanFixture fixture(*front_end);
    fixture.facts.python_packages = "/packages";
    fixture.facts.working_directory = fixture.folder();
    const auto plain = fixture.worker({"./train"}, 0);
    CHECK_FALSE(plain.contains("ACC_DATA_ORDER"));
    CHECK_FALSE(plain.contains("ACC_DATA_RECORD"));
    CHECK_FALSE(plain.contains("ACC_DATA_ROUND"));
    const auto worker = fixture.worker({"--data_order=acc", "--data_record=samples", "./train"}, 0);
    CHECK(worker.at("ACC_DATA_ORDER") == "acc");
    CHECK(worker.at("ACC_DATA_RECORD") == (fixture.folder() / "samples").string());
    CHECK(worker.at("ACC_DATA_ROUND") == "0");
    CHECK(worker.at("PYTHONPATH").starts_with("/packages"));
    CHECK(contains(fixture.refusal({"--data_order=numpy", "./train"}), "torch or acc"));
  }
}

TEST_CASE("the engine of Python programs is chosen alike in all front ends") {
  struct Case {
    Words words;
    std::string variable;  ///< ACC_ENGINE of the launcher
    std::string engine;    ///< ACC_ENGINE of the workers; empty: not set
  };
  const std::vector<Case> common = {
      {{}, "", ""},       {{"--engine", "acc"}, "", "acc"},   {{}, "acc", "acc"},
      {{}, "ACC", "acc"}, {{"--engine=acc"}, "torch", "acc"}, {{"--engine=torch"}, "acc", ""},
      {{}, "torch", ""},
  };
  const std::vector<Case> of_file = {
      {{"--config_file=acc.yaml"}, "", "acc"},
      {{"--config_file=acc.yaml"}, "torch", "acc"},
      {{"--config_file=acc.yaml", "--engine=torch"}, "acc", ""},
      {{"--config_file=acc.yaml", "--compat=accelerate"}, "", "acc"},
      {{"--compat=accelerate"}, "acc", "acc"},
  };
  for (const FrontEnd* front_end :
       {&accelerate_front_end(), &torchrun_front_end(), &deepspeed_front_end()}) {
    PlanFixture fixture(*front_end);
    fixture.facts.python_packages = "/packages";
    fixture.environment["PYTHONPATH"] = "/of/user";
    const auto acc = fixture.write("acc.yaml", "distributed_type: 'NO'\nengine: acc\n");
    const auto jax = fixture.write("jax.yaml", "distributed_type: 'NO'\nengine: jax\n");
    fixture.facts.working_directory = fixture.folder();
    std::vector<Case> cases = common;
    if (front_end == &accelerate_front_end()) {
      cases.insert(cases.end(), of_file.begin(), of_file.end());
    }
    for (auto [words, variable, engine] : cases) {
      CAPTURE(words);
      CAPTURE(variable);
      for (std::string& word : words) {
        word = word == "--config_file=acc.yaml" ? "--config_file=" + acc.string() : word;
      }
      words.emplace_back("./train");
      fixture.environment["ACC_ENGINE"] = variable;
      const auto worker = fixture.worker(words, 0);
      CHECK(settings::variable(worker, "ACC_ENGINE") == engine);
      CHECK(worker.contains("ACC_ENGINE") == !engine.empty());
      CHECK(worker.at("PYTHONPATH") == (engine.empty() ? "/of/user" : "/packages:/of/user"));
    }
    fixture.environment["ACC_ENGINE"] = "jax";
    CHECK(contains(fixture.refusal({"./train"}), "ACC_ENGINE must be torch or acc, got \"jax\""));
    fixture.environment.erase("ACC_ENGINE");
    fixture.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0";
    CHECK(contains(fixture.refusal({"--engine=acc", "--cpu_backend=acc", "./train"}),
                   "TORCH_DEVICE_BACKEND_AUTOLOAD is 0"));
    fixture.environment.erase("TORCH_DEVICE_BACKEND_AUTOLOAD");
    // Accelerate compares such words exactly, the other launchers do not.
    const std::string word = front_end == &accelerate_front_end() ? "acc" : "ACC";
    const auto both = fixture.worker({"--engine=" + word, "--cpu_backend=" + word, "./train"}, 0);
    CHECK(both.at("ACC_CPU_BACKEND") == "acc");
    CHECK(both.at("PYTHONPATH") == "/packages:/of/user");
    if (front_end == &accelerate_front_end()) {  // Accelerate's values are left to the program
      CHECK(contains(
          fixture.refusal({"--compat=accelerate", "--config_file", jax.string(), "./train"}),
          "jax.yaml:2: engine must be torch or acc"));
    }
    if (front_end == &deepspeed_front_end()) {
      fixture.write(".deepspeed_env", "ACC_ENGINE=acc\n");
      CHECK(fixture.worker({"./train"}, 0).at("PYTHONPATH") == "/packages:/of/user");
      CHECK_FALSE(fixture.worker({"--engine=torch", "./train"}, 0).contains("ACC_ENGINE"));
      fixture.write(".deepspeed_env", "ACC_ENGINE=jax\n");
      CHECK(contains(fixture.refusal({"./train"}), "ACC_ENGINE must be torch or acc"));
    }
  }
}

TEST_CASE("the default configuration file is Accelerate's") {
  PlanFixture fixture;
  fixture.write("hf/accelerate/default_config.yaml", "distributed_type: 'NO'\nnum_processes: 3\n");
  CHECK(fixture.plan({"./train"}).layout.num_processes == 1);
  fixture.environment["HF_HOME"] = (fixture.folder() / "hf").string();
  CHECK(fixture.plan({"./train"}).layout.num_processes == 3);
}

}  // namespace
}  // namespace acc::launcher
