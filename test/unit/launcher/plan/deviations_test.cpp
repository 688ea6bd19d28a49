// SPDX-License-Identifier: Apache-2.0
// Deviations of acclaunch from `accelerate launch`, by the numbers of docs/compat.md: the same
// command line under both compatibility policies.
#include "plan_fixture.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::contains;
using settings::Device;
using test::PlanFixture;
using Words = std::vector<std::string>;
using Backend = RendezvousPlan::Backend;

const std::string kFsdp = "distributed_type: FSDP\nnum_processes: 2\n";

Words compat(Words words) {
  words.insert(words.begin(), {"--compat", "accelerate"});
  return words;
}

std::string notices(const LaunchPlan& plan) {
  std::string text;
  for (const std::string& line : plan.notices) {
    text += line + "\n";
  }
  return text;
}

TEST_CASE("the policy is set by a flag, else a variable, and an invalid word is rejected") {
  PlanFixture fixture;
  const Words words = {"--cpu", "--num_processes", "2", "./train"};
  CHECK(fixture.plan(words).identity == Identity::torchrun);
  fixture.environment["ACC_COMPAT"] = "accelerate";
  CHECK(fixture.plan(words).identity == Identity::none);
  CHECK(fixture.plan({"--compat", "acclaunch", "--cpu", "--num_processes", "2", "./train"})
            .identity == Identity::torchrun);
  fixture.environment["ACC_COMPAT"] = "deepspeed";
  CHECK(contains(fixture.refusal(words), "ACC_COMPAT"));
}

TEST_CASE("1: --cpu, use_cpu and MULTI_CPU select the device, not the mode") {
  PlanFixture fixture;
  const std::string multi_cpu =
      fixture.write("cpu.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\n").string();
  const std::string use_cpu =
      fixture.write("no.yaml", "distributed_type: 'NO'\nnum_processes: 2\nuse_cpu: true\n")
          .string();
  for (const Words& words :
       {Words{"--cpu", "--num_processes", "2", "./train"},
        Words{"--config_file", multi_cpu, "./train"}, Words{"--config_file", use_cpu, "./train"}}) {
    const LaunchPlan ours = fixture.plan(words);
    CHECK(ours.layout.local_world_size == 2);
    CHECK(ours.rendezvous.backend == Backend::fixed);
    const auto environment = fixture.worker(ours, 1);
    CHECK(environment.at("RANK") == "1");
    CHECK(environment.at("ACCELERATE_USE_CPU") == "True");
    CHECK_FALSE(environment.contains("KMP_AFFINITY"));
    const LaunchPlan theirs = fixture.plan(compat(words));
    CHECK(theirs.layout.local_world_size == 1);
    CHECK(theirs.rendezvous.backend == Backend::none);
    CHECK(fixture.worker(theirs, 0).at("MASTER_PORT") == "29500");
    CHECK_FALSE(fixture.worker(theirs, 0).contains("RANK"));
  }
}

TEST_CASE("1: one process in plain mode is a plain process under both policies") {
  const PlanFixture fixture;
  for (const Words& words : {Words{"--cpu", "./train"}, compat({"--cpu", "./train"})}) {
    const LaunchPlan plan = fixture.plan(words);
    CHECK(plan.identity == Identity::none);
    const auto environment = fixture.worker(plan, 0);
    CHECK(environment.at("KMP_AFFINITY") == "granularity=fine,compact,1,0");
    CHECK(environment.at("KMP_BLOCKTIME") == "1");
    CHECK_FALSE(environment.contains("MASTER_ADDR"));
  }
}

TEST_CASE("1: FSDP and DeepSpeed remain the mode, and the default file is read") {
  PlanFixture fixture;
  fixture.set_gpus(2, 2);
  for (const std::string flag : {"--use_fsdp", "--use_deepspeed"}) {
    const Words words = {flag, "--cpu", "--num_processes", "4", "./train"};
    const LaunchPlan plan = fixture.plan(words);
    CHECK(plan.mode == (flag == "--use_fsdp" ? Mode::fsdp : Mode::deepspeed));
    CHECK(plan.device == Device::cpu);
    CHECK(contains(fixture.refusal(compat(words)), "--cpu and " + flag + " exclude each other"));
  }
  const std::string path = fixture.write("hf/accelerate/default_config.yaml", kFsdp).string();
  CHECK(fixture.plan({"--config_file", path, "--cpu", "./train"}).mode == Mode::fsdp);
  CHECK(fixture.plan(compat({"--config_file", path, "--cpu", "./train"})).mode == Mode::plain);
  fixture.environment["HF_HOME"] = (fixture.folder() / "hf").string();
  CHECK(fixture.plan({"--cpu", "./train"}).layout.num_processes == 2);
  CHECK(fixture.plan(compat({"--cpu", "./train"})).mode == Mode::plain);
}

TEST_CASE("2: without GPUs, modes run on the CPU") {
  const PlanFixture fixture;
  for (const std::string flag : {"--use_fsdp", "--use_deepspeed", "--multi_gpu"}) {
    const LaunchPlan plan = fixture.plan({flag, "./train"});
    CHECK(plan.layout.num_processes == 1);
    CHECK(plan.device == Device::cpu);
    CHECK(contains(notices(plan), "the worker runs on the CPU"));
    CHECK(contains(fixture.refusal(compat({flag, "./train"})), "--num_processes"));
  }
  CHECK(contains(notices(fixture.plan({"--gpu_ids", "3", "./train"})), "no GPU on this machine"));
}

TEST_CASE("2: GPUs hidden by CUDA_VISIBLE_DEVICES are not used, and a notice reports it") {
  PlanFixture fixture;
  fixture.set_gpus(2, 0);
  fixture.environment["CUDA_VISIBLE_DEVICES"] = "9";
  const LaunchPlan plan = fixture.plan({"--multi_gpu", "--num_processes", "2", "./train"});
  CHECK(plan.device == Device::cpu);
  CHECK(contains(notices(plan), "CUDA_VISIBLE_DEVICES=9 selects none of this machine's 2 GPUs"));
}

TEST_CASE("3: on a machine with GPUs there must be enough of them") {
  PlanFixture fixture;
  fixture.set_gpus(2, 2);
  for (const Words& words :
       {Words{"--multi_gpu", "--num_processes", "3", "./train"},
        Words{"--multi_gpu", "--num_processes", "2", "--gpu_ids", "0,5", "./train"},
        Words{"--multi_gpu", "--num_processes", "2", "--gpu_ids", "1,1", "./train"}}) {
    CHECK_FALSE(fixture.refusal(words).empty());
    CHECK(fixture.refusal(compat(words)).empty());
  }
}

TEST_CASE("4 and 8: the exit status and a given port are kept") {
  const PlanFixture fixture;
  const Words words = {"--use_fsdp", "--num_processes", "1", "--main_process_port", "7", "./train"};
  CHECK(fixture.plan(words).supervision.keeps_exit_status);
  CHECK(fixture.plan(words).rendezvous.port_was_given);
  CHECK_FALSE(fixture.plan(compat(words)).supervision.keeps_exit_status);
  CHECK_FALSE(fixture.plan(compat(words)).rendezvous.port_was_given);
}

TEST_CASE("5: keys that the defaults of Accelerate's flags hide are read") {
  const PlanFixture fixture;
  const std::string path =
      fixture
          .write("c.yaml", kFsdp +
                               "num_machines: 2\nmachine_rank: 0\nmain_process_ip: h\n"
                               "rdzv_backend: c10d\nsame_network: no\nenable_cpu_affinity: true\n")
          .string();
  const LaunchPlan ours = fixture.plan({"--config_file", path, "./train"});
  CHECK(ours.rendezvous.backend == Backend::c10d);
  CHECK(ours.settings.text("same_network"_key) == "false");
  CHECK(fixture.worker(ours, 0).at("ACCELERATE_CPU_AFFINITY") == "1");
  const LaunchPlan theirs = fixture.plan(compat({"--config_file", path, "./train"}));
  CHECK(theirs.rendezvous.backend == Backend::fixed);
  CHECK_FALSE(fixture.worker(theirs, 0).contains("ACCELERATE_CPU_AFFINITY"));
}

TEST_CASE("6 and 7: keys inside fsdp_config") {
  const PlanFixture fixture;
  const auto worker = [&](const std::string& key, bool ours) {
    const std::string path =
        fixture.write("c.yaml", kFsdp + "fsdp_config:\n  " + key + "\n").string();
    const Words words = {"--config_file", path, "./train"};
    return fixture.worker(fixture.plan(ours ? words : compat(words)), 0);
  };
  const std::string strategy = "fsdp_reshard_after_forward: SHARD_GRAD_OP";
  CHECK(worker(strategy, true).at("FSDP_SHARDING_STRATEGY") == "SHARD_GRAD_OP");
  CHECK(worker(strategy, false).at("FSDP_SHARDING_STRATEGY") == "FULL_SHARD");
  const std::string old_name = "fsdp_backward_prefetch_policy: BACKWARD_PRE";
  CHECK(worker(old_name, true).at("FSDP_BACKWARD_PREFETCH") == "BACKWARD_PRE");
  CHECK_FALSE(worker(old_name, false).contains("FSDP_BACKWARD_PREFETCH"));
  CHECK_THROWS_WITH_AS(worker("fsdp_ofload_params: true", true),
                       doctest::Contains("did you mean \"fsdp_offload_params\""), Error);
  CHECK(worker("fsdp_ofload_params: true", false).at("FSDP_OFFLOAD_PARAMS") == "false");
}

TEST_CASE("9: the number of processes is not rounded down, and may differ by machine on request") {
  PlanFixture fixture;
  const Words machine = {"--num_machines",    "2", "--machine_rank", "0",
                         "--main_process_ip", "h", "--use_fsdp"};
  const auto with = [&](const Words& more) {
    Words words = machine;
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("./train");
    return words;
  };
  CHECK(contains(fixture.refusal(with({"--num_processes", "5"})), "must be a multiple"));
  const LaunchPlan theirs = fixture.plan(compat(with({"--num_processes", "5"})));
  CHECK(theirs.layout.local_world_size == 2);
  CHECK(theirs.layout.num_processes == 4);
  const LaunchPlan uneven =
      fixture.plan(with({"--num_processes", "5", "--num_local_processes", "3"}));
  CHECK(uneven.layout.local_world_size == 3);
  CHECK(uneven.layout.num_processes == 5);
  CHECK(contains(fixture.refusal(with({})),
                 "--num_processes (the number of workers on all machines) is missing"));
  const std::string file = fixture.write("one.yaml", kFsdp + "machine_rank: 0\n").string();
  const Words two = {"--config_file",     file, "--num_machines", "2",
                     "--main_process_ip", "h",  "./train"};
  CHECK(contains(fixture.refusal(two), "needs --machine_rank"));
  CHECK(fixture.refusal(compat(two)).empty());
}

TEST_CASE("10: threads of workers on the CPU") {
  PlanFixture fixture;  // eight cores
  const auto threads = [&](const Words& words, bool ours) {
    const auto environment = fixture.worker(fixture.plan(ours ? words : compat(words)), 0);
    const auto found = environment.find("OMP_NUM_THREADS");
    return found == environment.end() ? "" : found->second;
  };
  struct Case {
    Words words;
    std::string ours;
    std::string theirs;
  };
  for (const auto& [words, ours, theirs] : {
           Case{{"--cpu", "--num_processes", "4", "./train"}, "2", "2"},
           Case{{"--cpu", "--num_processes", "16", "./train"}, "1", "1"},
           Case{{"--use_fsdp", "--num_processes", "4", "./train"}, "2", "1"},
           Case{{"--use_deepspeed", "--num_processes", "4", "./train"}, "2", "1"},
           Case{{"--use_deepspeed", "--num_processes", "1", "./train"}, "8", ""},
           Case{{"--num_processes", "1", "./train"}, "8", "1"},
           Case{{"--use_deepspeed", "--num_processes", "2", "--num_cpu_threads_per_process", "3",
                 "./train"},
                "3",
                "1"},
       }) {
    CAPTURE(words);
    CHECK(threads(words, true) == ours);
    CHECK(threads(words, false) == theirs);
  }
  CHECK(contains(fixture.notices({"--cpu", "--num_processes", "4", "./train"}),
                 "--num_cpu_threads_per_process 2\n"));
  fixture.set_gpus(2, 2);
  for (const bool ours : {true, false}) {
    CHECK(threads({"--use_deepspeed", "--num_processes", "1", "./train"}, ours).empty());
    CHECK(threads({"--use_deepspeed", "--num_processes", "2", "./train"}, ours) == "1");
    CHECK(threads({"--use_fsdp", "--num_processes", "1", "./train"}, ours) == "1");
  }
  fixture.environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  CHECK(threads({"--cpu", "./train"}, true) == "2");
  CHECK(threads({"--cpu", "--num_processes", "1", "./train"}, false) == "2");
}

TEST_CASE("11: the DeepSpeed JSON file is read before the start") {
  const PlanFixture fixture;
  fixture.write("bad.json", R"({"zero_optimization": {"stage": 7}})");
  for (const std::string file : {"bad.json", "none.json"}) {
    const Words named = {"--deepspeed_config_file", file, "--use_deepspeed",
                         "--num_processes",         "1",  "./train"};
    CHECK_FALSE(fixture.refusal(named).empty());
    const LaunchPlan theirs = fixture.plan(compat(named));
    CHECK(contains(notices(theirs), "the program will decide"));
    CHECK(fixture.worker(theirs, 0).at("ACCELERATE_DEEPSPEED_CONFIG_FILE") == file);
  }
}

TEST_CASE("12: a file must not contradict itself") {
  const PlanFixture fixture;
  for (const std::string& text :
       {kFsdp + "deepspeed_config:\n  zero_stage: 3\n",
        std::string("distributed_type: MULTI_GPU\nnum_processes: 2\nuse_cpu: true\n")}) {
    const std::string path = fixture.write("c.yaml", text).string();
    CHECK(contains(fixture.refusal({"--config_file", path, "./train"}), "c.yaml:1"));
    CHECK(fixture.refusal(compat({"--config_file", path, "./train"})).empty());
  }
}

TEST_CASE("13: a program that does not end in .py is executed") {
  PlanFixture fixture;
  fixture.write("path/python3", "#!/bin/sh\n", true);
  fixture.environment["PATH"] = (fixture.folder() / "path").string();
  const std::string python = (fixture.folder() / "path/python3").string();
  CHECK(fixture.plan({"./train"}).command == Words{"./train"});
  CHECK(fixture.plan(compat({"./train"})).command == Words{python, "./train"});
  CHECK(fixture.plan(compat({"--no_python", "./train"})).command == Words{"./train"});
}

TEST_CASE("14: ZeRO on several machines does not need the deepspeed command") {
  PlanFixture fixture;
  fixture.write("path/deepspeed", "#!/bin/sh\n", true);
  fixture.environment["PATH"] = (fixture.folder() / "path").string();
  const Words words = {"--use_deepspeed",
                       "--num_processes",
                       "4",
                       "--num_machines",
                       "2",
                       "--machine_rank",
                       "1",
                       "--main_process_ip",
                       "h",
                       "--no_python",
                       "./train"};
  CHECK(fixture.plan(words).identity == Identity::torchrun);
  CHECK(fixture.plan(compat(words)).identity == Identity::none);
  for (const std::string flag : {"--deepspeed_hostfile", "--deepspeed_inclusion_filter"}) {
    Words named = words;
    named.insert(named.begin(), {flag, "h"});
    CHECK(fixture.plan(named).identity == Identity::none);
  }
}

TEST_CASE("16: workers on the CPU get ACCELERATE_USE_CPU, whatever the reason") {
  PlanFixture fixture;
  fixture.write("train.py", "");
  const std::string mpi = "mpirun";
  fixture.write(mpi, "#!/bin/sh\necho Open MPI\n", true);
  const std::string zero =
      fixture.write("zero.yaml", "distributed_type: DEEPSPEED\nuse_cpu: true\n").string();
  fixture.environment["PATH"] = fixture.folder().string() + ":/usr/bin:/bin";
  struct Case {
    Words words;
    std::string ours;
    std::string theirs;
  };
  for (const auto& [words, ours, theirs] : {
           Case{{"--num_processes", "2"}, "True", "False"},
           Case{{"--multi_gpu", "--num_processes", "2"}, "True", ""},
           Case{{"--use_fsdp", "--num_processes", "1"}, "True", ""},
           Case{{"--use_deepspeed", "--num_processes", "2"}, "", ""},
           Case{{"--config_file", zero, "--num_processes", "2"}, "", ""},
           Case{{"--mpirun_hostfile", "hosts", "--num_processes", "2"}, "True", "False"},
           Case{{"--num_processes", "1"}, "False", "False"},
       }) {
    CAPTURE(words);
    Words command = words;
    command.emplace_back("train.py");
    const auto variable = [&](const Words& whole) {
      const auto environment = fixture.worker(fixture.plan(whole), 0);
      const auto found = environment.find("ACCELERATE_USE_CPU");
      return found == environment.end() ? "" : found->second;
    };
    CHECK(variable(command) == ours);
    CHECK(variable(compat(command)) == theirs);
  }
  fixture.set_gpus(2, 2);
  for (const std::string mode : {"--multi_gpu", "--use_fsdp", "--use_deepspeed"}) {
    CHECK_FALSE(fixture.worker(fixture.plan({mode, "--num_processes", "2", "train.py"}), 0)
                    .contains("ACCELERATE_USE_CPU"));
  }
}

TEST_CASE("16: a notice for Python programs tells what Accelerate cannot do on the CPU") {
  PlanFixture fixture;
  fixture.write("train.py", "");
  const std::string stops = "is rejected by its FSDP 1 plugin";
  const std::string replicas = "trains full replicas (MULTI_CPU)";
  struct Case {
    Words words;
    std::string says;  ///< empty: nothing about Accelerate
  };
  for (const auto& [words, says] : {
           Case{{"--use_fsdp", "train.py"}, stops},
           Case{{"--cpu", "--use_fsdp", "train.py"}, stops},
           Case{{"--use_fsdp", "--fsdp_version", "2", "train.py"}, replicas},
           Case{{"--use_fsdp", "--fsdp_sync_module_states", "false",
                 "--fsdp_cpu_ram_efficient_loading", "false", "train.py"},
                replicas},
           Case{{"--use_deepspeed", "train.py"}, ""},
           Case{{"--use_fsdp", "./train"}, ""},
           Case{{"--num_processes", "2", "train.py"}, ""},
           Case{compat({"--use_fsdp", "--num_processes", "2", "train.py"}), ""},
       }) {
    CAPTURE(words);
    const std::string said = fixture.notices(words);
    CHECK(contains(said, "Accelerate does not support") != says.empty());
    CHECK(contains(said, says));
  }
  CHECK(contains(fixture.notices({"--cpu", "--use_deepspeed", "train.py"}),
                 "with --cpu Accelerate does not use DeepSpeed"));
  CHECK(contains(fixture.notices({"--use_deepspeed", "--num_processes", "2", "train.py"}),
                 "Accelerate counts each worker of DeepSpeed as the only process"));
  const std::string alone = "each trains alone, unless the program itself asks";
  CHECK(
      contains(fixture.notices(compat({"--use_fsdp", "--num_processes", "2", "train.py"})), alone));
  CHECK_FALSE(contains(
      fixture.notices(compat({"--use_deepspeed", "--num_processes", "2", "train.py"})), alone));
}

TEST_CASE("17: Accelerate passes on str() of Python's value and rejects few values") {
  const PlanFixture fixture;
  struct Case {
    std::string yaml;  ///< inside fsdp_config
    std::string variable;
    std::string theirs;  ///< Accelerate's value; empty: rejected, or unset
    std::string ours;    ///< acclaunch's value; empty: rejected
  };
  for (const auto& [yaml, variable, theirs, ours] : {
           Case{"sharding_strategy: Half", "FSDP_SHARDING_STRATEGY", "Half", ""},
           Case{"sharding_strategy: null", "FSDP_SHARDING_STRATEGY", "None", "FULL_SHARD"},
           Case{"offload_params: null", "FSDP_OFFLOAD_PARAMS", "none", "false"},
           Case{"offload_params: 1.50", "FSDP_OFFLOAD_PARAMS", "1.5", ""},
           Case{"min_num_params: 1e8", "FSDP_MIN_NUM_PARAMS", "1e8", ""},
           Case{"transformer_layer_cls_to_wrap: [A, B's]", "FSDP_TRANSFORMER_CLS_TO_WRAP",
                "['A', \"B's\"]", "A,B's"},
           Case{"sync_module_states: null", "FSDP_SYNC_MODULE_STATES", "", "true"},
           Case{"sync_module_states: 'no'", "FSDP_SYNC_MODULE_STATES", "no", "no"},
       }) {
    CAPTURE(yaml);
    const std::string config =
        fixture.write("c.yaml", kFsdp + "fsdp_config:\n  " + yaml + "\n").string();
    const Words words = {"--config_file", config, "./train"};
    const auto value = [&](const Words& whole) {
      const auto environment = fixture.worker(fixture.plan(whole), 0);
      const auto found = environment.find(variable);
      return found == environment.end() ? "" : found->second;
    };
    if (theirs.empty()) {
      CHECK(contains(fixture.refusal(compat(words)), "fsdp_sync_module_states"));
    } else {
      CHECK(value(compat(words)) == theirs);
    }
    if (ours.empty()) {
      CHECK(contains(fixture.refusal(words), "c.yaml:4"));
    } else {
      CHECK(value(words) == ours);
    }
  }
}

TEST_CASE("17: Accelerate checks the types of flags and some words") {
  const PlanFixture fixture;
  struct Case {
    Words flags;
    std::string theirs;  ///< Accelerate's error message; empty: accepted
    std::string ours;
  };
  for (const auto& [flags, theirs, ours] : {
           Case{{"--fsdp_sharding_strategy", "Half"}, "", "--fsdp_sharding_strategy must be"},
           Case{{"--fsdp_version", "3"}, "--fsdp_version must be", "--fsdp_version must be"},
           Case{{"--use_parallelism_config", "--parallelism_config_tp_size", "3"},
                "",
                "does not divide the 2 processes"},
           Case{{"--parallelism_config_tp_size", "x"},
                "--parallelism_config_tp_size must be",
                "--parallelism_config_tp_size must be"},
           Case{{"--parallelism_config_cp_backend", "deepspeed"},
                "--parallelism_config_cp_backend must be torch",
                "--parallelism_config_cp_backend must be torch"},
       }) {
    CAPTURE(flags);
    Words words = {"--use_fsdp", "--num_processes", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back("./train");
    const std::string refusal = fixture.refusal(compat(words));
    CHECK(refusal.empty() == theirs.empty());
    CHECK(contains(refusal, theirs));
    CHECK(contains(fixture.refusal(words), ours));
  }
  CHECK(contains(fixture.refusal({"--use_parallelism_config", "./train"}), "--fsdp_version 2"));
}

TEST_CASE("17: only Accelerate requires an fp8 library in the program's Python") {
  PlanFixture fixture;
  const Words words = {"--mixed_precision", "fp8", "--num_processes", "1", "./train"};
  for (const std::string answer : {"False", "True"}) {
    fixture.environment["PYTHON_EXEC"] =
        fixture.write("python", "#!/bin/sh\necho " + answer + "\n", true).string();
    CAPTURE(answer);
    CHECK(contains(fixture.refusal(compat(words)), "torchao") == (answer == "False"));
    CHECK(fixture.refusal(words).empty());
  }
}

TEST_CASE("flags of another mode are a notice, not an error, under both policies") {
  const PlanFixture fixture;
  const Words words = {"--zero_stage", "3",    "--fsdp_version", "2",
                       "--fp8_format", "E4M3", "./train"};
  for (const Words& each : {words, compat(words)}) {
    const std::string text = notices(fixture.plan(each));
    CHECK(contains(text, "--zero_stage has no effect without --use_deepspeed"));
    CHECK(contains(text, "--fsdp_version has no effect without --use_fsdp"));
    CHECK(contains(text, "--fp8_format has no effect without --mixed_precision fp8"));
  }
  Words quiet = words;
  quiet.insert(quiet.begin(), "--quiet");
  CHECK(fixture.plan(quiet).notices.empty());
}

}  // namespace
}  // namespace acc::launcher
