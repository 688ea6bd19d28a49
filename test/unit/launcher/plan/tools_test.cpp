// SPDX-License-Identifier: Apache-2.0
// Tools that Accelerate starts (mpirun, deepspeed), and variables for Python programs beyond ranks
// and FSDP.
#include "plan_fixture.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::contains;
using test::PlanFixture;
using Words = std::vector<std::string>;

/// The arguments of the command, without the tool's path.
Words arguments(const LaunchPlan& plan) {
  return {plan.command.begin() + 1, plan.command.end()};
}

TEST_CASE("mpirun starts the program if an MPI hostfile is given") {
  struct Case {
    std::string version;
    Words words;
  };
  for (const auto& [version, words] :
       {Case{"mpirun (Open MPI) 4.1.4",
             {"--hostfile", "hosts", "--npernode", "2", "-n", "4", "--bind-to", "socket"}},
        Case{"Intel(R) MPI Library 2021", {"-f", "hosts", "-ppn", "2", "-n", "4"}}}) {
    PlanFixture fixture;
    fixture.write("bin/mpirun", "#!/bin/sh\necho '" + version + "'\n", true);
    fixture.environment["PATH"] = (fixture.folder() / "bin").string();
    const Words machines = {"--cpu", "--num_processes", "4", "--num_machines", "2"};
    Words flags = machines;
    flags.insert(flags.end(), {"--mpirun_hostfile", "hosts", "--main_process_ip", "h",
                               "--main_process_port", "7", "./train", "-x"});
    const LaunchPlan plan = fixture.plan(flags);
    CHECK(plan.identity == Identity::none);
    CHECK(plan.command.front() == (fixture.folder() / "bin/mpirun").string());
    Words expected = words;
    expected.insert(expected.end(), {"./train", "-x"});
    CHECK(arguments(plan) == expected);
    CHECK(fixture.worker(plan, 0).at("MASTER_ADDR") == "h");
    CHECK(fixture.worker(plan, 0).at("MASTER_PORT") == "7");

    fixture.facts.python_packages = "/packages";
    fixture.environment["ACC_ENGINE"] = "acc";
    expected = words;
    if (version.find("Open") != std::string::npos) {  // the others pass on every variable
      expected.insert(expected.end(), {"-x", "ACC_ENGINE", "-x", "PYTHONPATH"});
    }
    expected.insert(expected.end(), {"./train", "-x"});
    CHECK(arguments(fixture.plan(flags)) == expected);

    fixture.environment["ACC_ENGINE"] = "torch";
    fixture.environment["ACC_RECORD"] = "/recorded";  // needs the package with torch's engine too
    const LaunchPlan recorded = fixture.plan(flags);
    const Words words_of_record = {"-x", "PYTHONPATH",       "-x", "ACC_RECORD",
                                   "-x", "ACC_RECORD_STEPS", "-x", "ACC_RECORD_RANDOM"};
    expected = words;
    if (version.find("Open") != std::string::npos) {
      expected.insert(expected.end(), words_of_record.begin(), words_of_record.end());
    }
    expected.insert(expected.end(), {"./train", "-x"});
    CHECK(arguments(recorded) == expected);
    CHECK(fixture.worker(recorded, 0).at("PYTHONPATH").starts_with("/packages"));
  }
}

TEST_CASE("the MPI hostfile may be set in the file, and mpirun must exist") {
  PlanFixture fixture;
  fixture.environment["PATH"] = "/nowhere";
  const std::string path = fixture
                               .write("c.yaml",
                                      "distributed_type: MULTI_CPU\nnum_processes: 2\n"
                                      "mpirun_config:\n  mpirun_hostfile: hosts\n")
                               .string();
  const std::string message = fixture.refusal({"--config_file", path, "./train"});
  CHECK(contains(message, "c.yaml:4: mpirun_hostfile needs mpirun"));
}

class DeepspeedFixture : public PlanFixture {
 public:
  DeepspeedFixture() {
    write("bin/deepspeed", "#!/bin/sh\n", true);
    environment["PATH"] = (folder() / "bin").string();
  }

  [[nodiscard]] LaunchPlan plan_with(const Words& more) const {
    Words words = {"--use_deepspeed", "--num_processes", "8", "--num_machines", "2"};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"run.py", "-x"});
    return plan(words);
  }
};

TEST_CASE("the deepspeed command starts several machines, unless the launcher is standard") {
  const DeepspeedFixture fixture;
  struct Case {
    Words more;
    Words words;
  };
  for (const auto& [more, words] : {
           Case{{"--deepspeed_multinode_launcher", "pdsh"},
                {"--hostfile", "None", "--no_local_rank", "--launcher", "pdsh", "--num_gpus", "4",
                 "--master_port", "29500"}},
           Case{{"--deepspeed_hostfile", "h", "--main_process_ip", "a", "--main_process_port", "7"},
                {"--hostfile", "h", "--no_local_rank", "--launcher", "pdsh", "--num_gpus", "4",
                 "--master_addr", "a", "--master_port", "7"}},
           Case{{"--deepspeed_multinode_launcher", "nossh", "--machine_rank", "1"},
                {"--hostfile", "None", "--node_rank", "1", "--no_ssh", "--num_gpus", "4",
                 "--master_port", "29500"}},
           Case{{"--deepspeed_inclusion_filter", "i", "--deepspeed_exclusion_filter", "e"},
                {"--hostfile", "None", "--no_local_rank", "--launcher", "pdsh", "--exclude", "e",
                 "--master_port", "29500"}},
           Case{{"--deepspeed_inclusion_filter", "i", "-m"},
                {"--hostfile", "None", "--no_local_rank", "--launcher", "pdsh", "--include", "i",
                 "--master_port", "29500", "--module"}},
       }) {
    const LaunchPlan plan = fixture.plan_with(more);
    CHECK(plan.identity == Identity::none);
    CHECK(plan.layout.local_world_size == 1);
    Words expected = words;
    expected.insert(expected.end(), {"run.py", "-x"});
    CHECK(arguments(plan) == expected);
  }
}

TEST_CASE("the other machines of the deepspeed command get the environment from a file") {
  DeepspeedFixture fixture;
  fixture.environment["GOOD"] = "1";
  fixture.environment["BAD"] = "a b";
  fixture.environment["EMPTY"] = "";
  fixture.environment["DS_ENV_FILE"] = "other_env";
  const LaunchPlan plan = fixture.plan_with({"--deepspeed_hostfile", "h"});
  REQUIRE(plan.appended_file.has_value());
  CHECK(plan.appended_file->path == (fixture.folder() / "other_env").string());
  const std::string& text = plan.appended_file->text;
  CHECK(contains(text, "GOOD=1\n"));
  CHECK(contains(text, "ACCELERATE_USE_DEEPSPEED=true\n"));
  CHECK_FALSE(contains(text, "BAD="));
  CHECK_FALSE(contains(text, "EMPTY="));
  CHECK(contains(plan.notices.back(), "BAD"));

  fixture.facts.python_packages = "/packages";
  fixture.environment["ACC_ENGINE"] = "acc";
  const auto lines = [&](const Words& more) { return fixture.plan_with(more).appended_file->text; };
  CHECK(contains(lines({"--deepspeed_hostfile", "h"}), "ACC_ENGINE=acc\n"));
  CHECK_FALSE(contains(lines({"--deepspeed_hostfile", "h", "--engine", "torch"}), "ACC_ENGINE"));
}

TEST_CASE("without a deepspeed command the message says what to do") {
  DeepspeedFixture fixture;
  fixture.environment["PATH"] = "/nowhere";
  CHECK_THROWS_WITH_AS(fixture.plan_with({"--deepspeed_hostfile", "h"}),
                       doctest::Contains("--deepspeed_multinode_launcher standard"), Error);
  const PlanFixture plain;
  const LaunchPlan ranks = plain.plan({"--use_deepspeed", "--num_processes", "8", "--num_machines",
                                       "2", "--machine_rank", "0", "--main_process_ip", "h",
                                       "--deepspeed_multinode_launcher", "standard", "./train"});
  CHECK(ranks.layout.local_world_size == 4);
  CHECK(ranks.identity == Identity::torchrun);
}

TEST_CASE("fp8 settings reach the program only with fp8") {
  const PlanFixture fixture;
  const auto config = [&](const std::string& precision) {
    return fixture
        .write("c.yaml", "distributed_type: 'NO'\nmixed_precision: " + precision +
                             "\nfp8_config:\n  backend: TE\n  amax_history_len: 16\n"
                             "  override_linear_precision: [true, false, true]\n")
        .string();
  };
  auto worker = fixture.worker(fixture.plan({"--config_file", config("fp8"), "./train"}), 0);
  CHECK(worker.at("ACCELERATE_FP8_BACKEND") == "TE");
  CHECK(worker.at("ACCELERATE_FP8_AMAX_HISTORY_LEN") == "16");
  CHECK(worker.at("ACCELERATE_FP8_OVERRIDE_FPROP") == "True");
  CHECK(worker.at("ACCELERATE_FP8_OVERRIDE_DGRAD") == "False");
  CHECK(worker.at("ACCELERATE_FP8_OVERRIDE_WGRAD") == "True");
  CHECK(worker.at("ACCELERATE_FP8_FORMAT") == "HYBRID");
  CHECK(worker.at("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL") == "False");
  CHECK(worker.at("ACCELERATE_FP8_PAD_INNER_DIM") == "True");
  worker = fixture.worker(fixture.plan({"--config_file", config("bf16"), "./train"}), 0);
  for (const auto& [name, value] : worker) {
    CHECK_FALSE(name.starts_with("ACCELERATE_FP8_"));
  }
}

TEST_CASE("tensor, context and sequence parallelism are passed on to Python programs") {
  const PlanFixture fixture;
  const Words flags = {"--use_fsdp",
                       "--use_parallelism_config",
                       "--fsdp_version",
                       "2",
                       "--num_processes",
                       "8",
                       "--parallelism_config_dp_shard_size",
                       "2"};
  const auto worker = [&](const Words& more) {
    Words words = flags;
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("./train");
    return fixture.worker(fixture.plan(words), 0);
  };
  const auto context = worker({"--parallelism_config_cp_size", "4"});
  CHECK(context.at("PARALLELISM_CONFIG_CP_SIZE") == "4");
  CHECK(context.at("PARALLELISM_CONFIG_CP_COMM_STRATEGY") == "allgather");
  CHECK_FALSE(context.contains("PARALLELISM_CONFIG_SP_SEQ_LENGTH"));
  CHECK_THROWS_WITH_AS(settings::settings_from_environment(context),
                       doctest::Contains("parallelism_config_cp_size must be 1"), Error);
  const auto sequence = worker({"--parallelism_config_sp_size", "4"});
  CHECK(sequence.at("PARALLELISM_CONFIG_SP_SEQ_LENGTH") == "None");
  CHECK(sequence.at("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE") == "True");
  CHECK(sequence.at("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION") == "sdpa");
  CHECK_FALSE(sequence.contains("PARALLELISM_CONFIG_CP_COMM_STRATEGY"));
  CHECK_THROWS_WITH_AS(worker({"--parallelism_config_tp_size", "3"}),
                       doctest::Contains("does not divide the 8 processes"), Error);
}

TEST_CASE("without use_parallelism_config its settings reach only libacc_runtime") {
  const PlanFixture fixture;
  const auto worker =
      fixture.worker(fixture.plan({"--use_fsdp", "--num_processes", "4",
                                   "--parallelism_config_dp_shard_size", "2", "./train"}),
                     0);
  CHECK_FALSE(worker.contains("PARALLELISM_CONFIG_DP_SHARD_SIZE"));
  CHECK(settings::settings_from_environment(worker).sharding.shard_size == 2);
}

TEST_CASE("several RTX 40 cards under an old driver run without peer-to-peer access") {
  struct Case {
    std::string name;
    int count;
    std::string driver;
    bool disabled;
  };
  for (const auto& [name, count, driver, disabled] :
       {Case{"NVIDIA GeForce RTX 4090", 2, "535.54.03", true},
        Case{"NVIDIA GeForce RTX 4090", 2, "550.40.06", true},
        Case{"NVIDIA GeForce RTX 4090", 2, "550.40.07", false},
        Case{"NVIDIA GeForce RTX 4090", 2, "550.54", false},
        Case{"NVIDIA GeForce RTX 4090", 1, "535.54.03", false},
        Case{"NVIDIA H200", 2, "535.54.03", false}}) {
    PlanFixture fixture;
    fixture.set_gpus(count, count);
    for (Gpu& gpu : fixture.facts.gpu.devices) {
      gpu.name = name;
    }
    fixture.facts.gpu.driver_version = driver;
    fixture.environment["NCCL_IB_DISABLE"] = "0";
    const auto worker = fixture.worker(fixture.plan({"--use_fsdp", "./train"}), 0);
    CHECK(worker.contains("NCCL_P2P_DISABLE") == disabled);
    CHECK(worker.at("NCCL_IB_DISABLE") == "0");
  }
}

}  // namespace
}  // namespace acc::launcher
