// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/explain.hpp"

#include "commands/explain/plan_view.hpp"
#include "plan_fixture.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace acc::launcher {
namespace {

using acc::test::contains;
using test::PlanFixture;
using Words = std::vector<std::string>;
using Json = nlohmann::json;

/// Returns the plan that `explain` makes for a command line. The program may be missing.
LaunchPlan plan_of(const PlanFixture& fixture, const Words& words) {
  Flags flags = parse_flags(accelerate_front_end(), words);
  flags.needs_program = false;
  return accelerate_front_end().plan(flags, fixture.environment, fixture.facts);
}

Json json_of(const PlanFixture& fixture, const Words& words) {
  return Json::parse(explain_json("launch", plan_of(fixture, words), fixture.environment));
}

TEST_CASE("explain prints the plan of a launch") {
  PlanFixture fixture;
  fixture.set_gpus(2, 2);
  fixture.facts.gpu.devices[0].numa_node = 0;
  const auto config = fixture.write("c.yaml",
                                    "distributed_type: FSDP\nnum_processes: 2\n"
                                    "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n");
  const std::string text =
      explain(plan_of(fixture, {"--config_file", config.string(), "--numa-binding", "exclusive",
                                "--main_process_port", "0", "./train", "a b"}),
              fixture.environment);
  for (const std::string line :
       {"mode        fsdp on cuda\n",
        "world       2 processes on 1 machine(s); ranks 0..1 on this one, machine 0\n",
        "sharding    shard_grad_op, shard groups of 2, 1 replica(s)\n",
        "gpus        0  GPU model  GPU-aaaa  NUMA node 0\n"
        "            1  GPU model  GPU-bbbb  NUMA node unknown\n"
        "            driver 580.1\n",
        "binding     exclusive\n"
        "workers     local rank 0 on GPU 0, CPUs 0-3 of NUMA node 0\n"
        "            local rank 1 on GPU 1, CPUs 4-7 of NUMA node 0\n",
        "rendezvous  static at 127.0.0.1, a free port\n            run id none\n",
        "restarts    none; 30 s from SIGTERM to SIGKILL\n", "output      to the console\n",
        "command     ./train 'a b'\n", "  FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP\n",
        "  LOCAL_RANK=0    by local rank: 0 1\n", "  MASTER_PORT=(known when the job starts)\n"}) {
    CAPTURE(line);
    CHECK(contains(text, line));
  }
  CHECK(contains(text, (config.string() + ":4\n")));
}

TEST_CASE("explain shows the engine of Python programs") {
  PlanFixture fixture;
  fixture.write("train.py", "");
  fixture.facts.python_packages = "/packages";
  fixture.environment["ACC_ENGINE"] = "acc";
  const auto shown = json_of(fixture, {"--use_fsdp", "--cpu", "--num_processes", "2", "./train"});
  CHECK(shown["environment"]["set"]["PYTHONPATH"] == "/packages");
  const std::string text = explain(plan_of(fixture, {"--engine", "acc", "./train"}), {});
  CHECK(contains(text, "  ACC_ENGINE=acc\n"));
  CHECK(contains(text, "--engine\n"));
  for (const std::string engine : {"acc", "torch"}) {  // Accelerate's engine does not shard on CPUs
    CHECK(contains(fixture.notices({"--use_fsdp", "--cpu", "--num_processes", "2", "--engine",
                                    engine, "train.py"}),
                   "Accelerate does not support FSDP") == (engine == "torch"));
  }
}

TEST_CASE("explain shows the smaller groups of resharding after forward") {
  const PlanFixture fixture;
  const auto plan =
      plan_of(fixture, {"--use_fsdp", "--cpu", "--num_processes", "4", "--fsdp_version", "2",
                        "--fsdp_reshard_after_forward", "2", "./train"});
  CHECK(contains(explain(plan, fixture.environment),
                 "sharding    full_shard, shard groups of 4, 1 replica(s), resharded after forward "
                 "over 2\n"));
}

TEST_CASE("explain does not need a program, but a launch does") {
  const PlanFixture fixture;
  const LaunchPlan plan = plan_of(fixture, {"--num_processes", "2"});
  CHECK(plan.command.empty());
  CHECK(contains(explain(plan, fixture.environment), "command     no program was given\n"));
  CHECK(json_of(fixture, {"--num_processes", "2"})["command"].is_null());
  CHECK(contains(fixture.refusal({"--num_processes", "2"}), "no program to start"));
  CHECK(plan_of(fixture, {"./missing"}).command == std::vector<std::string>{"./missing"});
  CHECK(contains(fixture.refusal({"./missing"}), "cannot find program ./missing"));
}

TEST_CASE("explain shows only variables that a launch adds, changes or removes") {
  PlanFixture fixture;
  fixture.environment["SECRET_TOKEN"] = "hush";
  fixture.environment["WORLD_SIZE"] = "2";  // equals the value of all workers
  fixture.environment["ROLE_NAME"] = "other";
  fixture.environment["RANK"] = "0";  // equals the value of one worker
  fixture.environment["ACC_ZERO_STAGE"] = "3";
  const LaunchPlan plan = plan_of(fixture, {"--num_processes", "2", "./train"});
  const commands::EnvironmentChanges changes =
      commands::environment_changes(plan, fixture.environment);
  const auto values = [&](const std::string& name) {
    const auto found = std::ranges::find(changes.set, name, &commands::ChangedVariable::name);
    return found == changes.set.end() ? std::vector<commands::ChangedVariable::Value>{}
                                      : found->values;
  };
  using Values = std::vector<commands::ChangedVariable::Value>;
  CHECK(values("SECRET_TOKEN").empty());
  CHECK(values("WORLD_SIZE").empty());
  CHECK(values("ROLE_NAME") == Values{"default"});
  CHECK(values("RANK") == Values{"0", "1"});
  CHECK(values("TORCHELASTIC_ERROR_FILE") == Values{std::nullopt});
  CHECK(changes.removed == Words{"ACC_ZERO_STAGE"});
  CHECK_FALSE(contains(explain(plan, fixture.environment), "hush"));
  CHECK_FALSE(contains(explain_json("launch", plan, fixture.environment), "hush"));
}

TEST_CASE("a worker's environment is the one that explain shows") {
  PlanFixture fixture;
  fixture.set_gpus(4, 4);
  const auto shown = json_of(fixture, {"--use_fsdp", "--num_processes", "4", "--gpu_ids", "0,1,2,3",
                                       "--main_process_port", "1234", "./train"})["environment"];
  const LaunchPlan plan = fixture.plan({"--use_fsdp", "--num_processes", "4", "--gpu_ids",
                                        "0,1,2,3", "--main_process_port", "1234", "./train"});
  for (int local_rank = 0; local_rank < 4; ++local_rank) {
    settings::Environment expected = fixture.worker(plan, local_rank);
    settings::Environment built = fixture.environment;
    for (const auto& [name, value] : shown["set"].items()) {
      const bool differs = shown["by_local_rank"].contains(name);
      const Json& mine =
          differs ? shown["by_local_rank"][name][static_cast<std::size_t>(local_rank)] : value;
      if (mine.is_null()) {
        CHECK((name == "TORCHELASTIC_ERROR_FILE" || name == "ACC_FLIGHT_RECORD"));
        expected.erase(name);
        continue;
      }
      built[name] = mine.get<std::string>();
    }
    CHECK(built == expected);
  }
}

TEST_CASE("explain shows null for values that the rendezvous decides") {
  const PlanFixture fixture;
  const Words words = {"--num_machines", "2",    "--num_processes", "4", "--main_process_ip", "h",
                       "--rdzv_backend", "c10d", "./train"};
  const Json json = json_of(fixture, words);
  CHECK(json["rendezvous"]["backend"] == "c10d");
  CHECK(json["machines"]["machine_rank"].is_null());
  CHECK(json["ranks"]["first"].is_null());
  for (const std::string name : {"RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    CAPTURE(name);
    CHECK(json["environment"]["set"][name].is_null());
  }
  CHECK(json["environment"]["set"]["LOCAL_RANK"] == "0");
  CHECK(contains(explain(plan_of(fixture, words), fixture.environment),
                 "the rendezvous assigns the ranks"));
}

TEST_CASE("a launcher of one rank shows the output of its own local rank") {
  PlanFixture fixture;
  fixture.environment.merge(settings::Environment{{"OMPI_COMM_WORLD_RANK", "2"},
                                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                  {"OMPI_MCA_orte_num_nodes", "1"}});
  const Words words = {
      "--main_process_ip", "h", "--main_process_port", "29500", "--redirects", "2:1", "./train"};
  CHECK(contains(explain(plan_of(fixture, words), fixture.environment),
                 "local rank 2: stderr to the console, stdout to files"));
  const Json worker = json_of(fixture, words)["workers"][0];
  CHECK(worker["local_rank"] == 2);
  CHECK(worker["to_console"] == Json{"stderr"});
  CHECK(worker["to_file"] == Json{"stdout"});
}

TEST_CASE("every setting in explain's JSON has its source") {
  PlanFixture fixture;
  fixture.write("z.json",
                R"({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3,
    "reduce_bucket_size": 7}})");
  const auto config = fixture.write("c.yaml",
                                    "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                                    "deepspeed_config:\n  deepspeed_config_file: z.json\n");
  const Json json =
      json_of(fixture, {"--config_file", config.string(), "--mixed_precision", "bf16"});
  const auto setting = [&](const std::string& name) {
    for (const Json& one : json["settings"]) {
      if (one["name"] == name) {
        return one;
      }
    }
    return Json();
  };
  CHECK(setting("mixed_precision") == Json{{"name", "mixed_precision"},
                                           {"value", "bf16"},
                                           {"source", "flag"},
                                           {"where", "--mixed_precision"}});
  CHECK(setting("num_processes")["where"] == config.string() + ":2");
  CHECK(setting("reduce_bucket_size")["source"] == "deepspeed_file");
  CHECK(setting("reduce_bucket_size")["value"] == "7");
  CHECK(contains(setting("reduce_bucket_size")["where"], "z.json:2"));
  CHECK(setting("gradient_clipping")["value"].is_null());
  CHECK(setting("role")["source"] == "default");
  CHECK(setting("fsdp_version").is_null());  // has no effect in this mode
}

TEST_CASE("five errors in a file are reported together, each with its line") {
  const PlanFixture fixture;
  const std::string config = fixture
                                 .write("five.yaml",
                                        "compute_environment: LOCAL_MACHINE\n"
                                        "distributed_type: FSDP\n"
                                        "num_processes: two\n"
                                        "mixed_precison: bf16\n"
                                        "fsdp_config:\n"
                                        "  fsdp_sharding_strategy: FULL_SHRAD\n"
                                        "  fsdp_offload_params: maybe\n"
                                        "deepspeed_config:\n"
                                        "  zero_stage: 9\n")
                                 .string();
  try {
    plan_of(fixture, {"--config_file", config});
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(exit_status(error) == 2);
    const Json json = Json::parse(explain_refusal_json("launch", error.what()));
    const Words beginnings = {":3: num_processes must be", ":4: unknown key \"mixed_precison\"",
                              ":6: fsdp_sharding_strategy must be",
                              ":7: fsdp_offload_params must be", ":9: zero_stage must be"};
    REQUIRE(json["faults"].size() >= beginnings.size());
    for (const std::string& beginning : beginnings) {
      CAPTURE(beginning);
      CHECK(std::ranges::count_if(json["faults"], [&](const Json& fault) {
              return fault.get<std::string>().starts_with(config + beginning);
            }) == 1);
    }
  }
}

TEST_CASE("an error message of several lines stays one fault") {
  const Json json = Json::parse(explain_refusal_json("torchrun", "one\n  more of it\ntwo"));
  CHECK(json["faults"] == Json{"one\n  more of it", "two"});
  CHECK(json["face"] == "torchrun");
}

}  // namespace
}  // namespace acc::launcher
