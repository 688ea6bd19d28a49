// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "support/text.hpp"
#include "torchrun_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace acc::launcher {
namespace {

using acc::test::contains;
using test::with_program;
using Fixture = test::TorchrunFixture;
using Streams = std::vector<OutputPlan::Streams>;
using Words = std::vector<std::string>;

TEST_CASE("flags may be spelled as argparse allows") {
  struct Case {
    Words words;
    std::string key, text;
  };
  for (const auto& [words, key, text] : {
           Case{{"--nproc-per-node", "3"}, "nproc_per_node", "3"},
           Case{{"--nproc_per_node=3"}, "nproc_per_node", "3"},
           Case{{"--nproc", "3"}, "nproc_per_node", "3"},
           Case{{"--rdzv-e=host:1"}, "rdzv_endpoint", "host:1"},
           Case{{"--stand"}, "standalone", "true"},
           Case{{"-r3"}, "redirects", "3"},
           Case{{"-r", "3"}, "redirects", "3"},
           Case{{"-r=3"}, "redirects", "3"},
           Case{{"-t", "0:1,1:2"}, "tee", "0:1,1:2"},
           Case{{"-m"}, "module", "true"},
           Case{{"-mt3"}, "module", "true"},
           Case{{"-mt3"}, "tee", "3"},
           Case{{"--max-restarts=1", "--max-restarts=2"}, "max_restarts", "2"},
       }) {
    CAPTURE(words);
    const Flags flags = parse_flags(torchrun_front_end(), with_program(words));
    const settings::SettingRow& row = *settings::find_setting(key, torchrun_front_end().table);
    REQUIRE(flags.find(row) != nullptr);
    CHECK(flags.find(row)->text == text);
    CHECK(flags.program == "train.py");
  }
}

TEST_CASE("invalid flags are rejected by name, all at once") {
  const Fixture fixture;
  struct Case {
    Words words;
    Words parts;
  };
  for (const auto& [words, parts] : {
           Case{{"--nproc-pre-node", "2"},
                {"unknown flag --nproc-pre-node", "did you mean --nproc-per-node?"}},
           Case{{"--rdzv", "x"}, {"--rdzv is ambiguous: --rdzv-backend or --rdzv-endpoint"}},
           Case{{"-x"}, {"unknown flag -x"}},
           Case{{"--nproc-pre-node", "2", "--max-restarts=x"},
                {"unknown flag --nproc-pre-node", "--max-restarts must be an integer"}},
           Case{{"--colour=red", "-x", "--standalone=1"},
                {"unknown flag --colour", "unknown flag -x", "--standalone takes no value"}},
           Case{{"--logs-specs", "mine"}, {"--logs-specs: it names a Python object"}},
           Case{{"--max-restarts", "many", "--rdzv-backend", "zeus", "--role"},
                {"--max-restarts must be an integer",
                 "--rdzv-backend must be static, c10d, etcd or etcd-v2", "got \"zeus\""}},
           Case{{"--nnodes=2", "--rdzv-backend=etcd"},
                {"--rdzv-backend etcd needs --rdzv-endpoint HOST[:PORT],..."}},
           Case{{"--nnodes=2", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=a:x"},
                {"--rdzv-endpoint: \"a:x\": expected a port of 1..65535"}},
           Case{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,,b"},
                {"--rdzv-endpoint must be HOST, HOST:PORT"}},
           Case{{"--nproc-per-node", "lots", "--nnodes", "2:1"},
                {"--nproc-per-node must be a number, auto, cpu or gpu, got \"lots\"",
                 "--nnodes must be N or MIN:MAX machines"}},
           Case{{"--nproc-per-node", "gqu"}, {"did you mean \"gpu\"?"}},
           Case{{"--nproc-per-node", "0"}, {"--nproc-per-node must be at least 1, got 0"}},
           Case{{"--nproc-per-node", "gpu"}, {"asks for GPUs, but none is visible"}},
           Case{{"-t", "9", "--log-dir", "train.py", "--signals-to-handle", "SIGKILL",
                 "--rdzv-conf", "timeout"},
                {"-t must be", "--log-dir must be a folder", "--signals-to-handle must be signals",
                 "got \"SIGKILL\"", "--rdzv-conf must be"}},
           Case{{"--nnodes=2", "--node-rank=2"},
                {"--node-rank 2 must be below the number of machines, 2"}},
           Case{{"--nnodes=2", "--master-port=0"}, {"set a port"}},
           Case{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host:0"},
                {"host:0", "set a port"}},
           Case{{"--nnodes=2", "--standalone"}, {"--standalone is for one machine", "--nnodes 2"}},
           Case{{"-m", "--no-python"}, {"--module", "--no_python"}},
           Case{{"--shutdown-timeout=-1"}, {"--shutdown-timeout must be an integer 0.."}},
           Case{{"--event-log-handler=mine"}, {"--event-log-handler must be null"}},
           Case{{"--engine=jax"}, {"--engine must be torch or acc, got \"jax\""}},
       }) {
    CAPTURE(words);
    const std::string message = fixture.refusal(with_program(words));
    CAPTURE(message);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(message, part));
    }
  }
  CHECK(contains(fixture.refusal({"--nproc-per-node=2"}), "no program to start"));
  CHECK(contains(fixture.refusal({"missing.py"}), "cannot find program missing.py"));
}

TEST_CASE("a PET_ variable replaces each flag that is not given") {
  Fixture fixture;
  fixture.environment.insert({{"PET_NPROC_PER_NODE", "4"},
                              {"PET_MAX_RESTARTS", "3"},
                              {"PET_MASTER_PORT", "29601"},
                              {"PET_RDZV_ID", "job7"},
                              {"PET_TEE", "1"},
                              {"PET_ROLE", "trainer"},
                              {"PET_MODULE", "1"},
                              {"PET_NO_PYTHON", "0"},
                              {"PET_SHUTDOWN_TIMEOUT", "5"}});
  const LaunchPlan plan = fixture.plan({"--max-restarts", "1", "train"});
  CHECK(plan.layout.local_world_size == 4);
  CHECK(plan.supervision.max_restarts == 1);
  CHECK(plan.rendezvous.port == 29601);
  CHECK(plan.rendezvous.run_id == "job7");
  CHECK(plan.output.to_file == Streams{1, 1, 1, 1});
  CHECK(plan.role == "trainer");
  CHECK(plan.command.at(2) == "-m");
  CHECK(plan.supervision.shutdown_timeout.count() == 5);
  CHECK(describe(plan.settings.source("max_restarts"_key)) == "--max-restarts");
  CHECK(describe(plan.settings.source("rdzv_id"_key)) == "environment PET_RDZV_ID");

  fixture.environment = {{"PATH", fixture.environment["PATH"]},
                         {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}};
  CHECK(fixture.plan({"train.py"}).supervision.shutdown_timeout.count() == 7);
  CHECK(fixture.plan({"--shutdown-timeout=8", "train.py"}).supervision.shutdown_timeout.count() ==
        8);
  const LaunchPlan filtering = fixture.plan(
      {"--duplicate-stderr-filters", "loss,,grad,nan", "--stuck-timeout=4", "train.py"});
  CHECK(filtering.output.stderr_filters == Words{"loss,grad", "nan"});
  CHECK(filtering.output.stdout_filters.empty());
  CHECK(filtering.supervision.stuck_timeout.count() == 4);
  fixture.environment.insert(
      {{"PET_MAX_RESTARTS", "x"}, {"PET_STANDALONE", "perhaps"}, {"PET_LOGS_SPECS", "a"}});
  const std::string message = fixture.refusal({"train.py"});
  CHECK(contains(message, "PET_MAX_RESTARTS must be an integer"));
  CHECK(contains(message, "PET_STANDALONE must be true or false, got \"perhaps\""));
  CHECK(contains(message, "PET_LOGS_SPECS: "));
}

TEST_CASE("number of workers on this machine") {
  struct Case {
    std::string word;
    int gpus, workers;
  };
  for (const auto& [word, gpus, workers] : {Case{"3", 0, 3}, Case{"cpu", 2, 8}, Case{"auto", 0, 8},
                                            Case{"auto", 2, 2}, Case{"gpu", 2, 2}}) {
    CAPTURE(word);
    Fixture fixture;
    fixture.set_gpus(gpus, gpus);
    const LaunchPlan plan = fixture.plan({"--nproc-per-node", word, "train.py"});
    CHECK(plan.layout.local_world_size == workers);
    CHECK(plan.layout.num_processes == workers);
    CHECK(plan.binding.workers.size() == static_cast<std::size_t>(workers));
    CHECK((plan.device == settings::Device::cuda) == (gpus > 0));
  }
}

TEST_CASE("a worker's identity in torchrun's variables") {
  Fixture fixture;
  const auto worker = fixture.worker({"--nproc-per-node=2", "--role=r", "--max-restarts=2",
                                      "--signals-to-handle=SIGUSR1,SIGTERM", "train.py"},
                                     1);
  const settings::Environment expected = {{"RANK", "1"},
                                          {"LOCAL_RANK", "1"},
                                          {"WORLD_SIZE", "2"},
                                          {"LOCAL_WORLD_SIZE", "2"},
                                          {"GROUP_RANK", "0"},
                                          {"GROUP_WORLD_SIZE", "1"},
                                          {"ROLE_RANK", "1"},
                                          {"ROLE_WORLD_SIZE", "2"},
                                          {"ROLE_NAME", "r"},
                                          {"MASTER_ADDR", "localhost"},
                                          {"TORCHELASTIC_RESTART_COUNT", "0"},
                                          {"TORCHELASTIC_MAX_RESTARTS", "2"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                          {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1,SIGTERM"},
                                          {"OMP_NUM_THREADS", "2"}};
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(settings::variable(worker, name) == value);
  }
  // Exactly the variables with random values, and those of acclaunch.
  std::set<std::string> rest;
  for (const auto& [name, value] : worker) {
    if (!expected.contains(name) && !fixture.environment.contains(name)) {
      rest.insert(name);
    }
  }
  CHECK(rest == std::set<std::string>{"ACC_DEVICE", "ACC_FLIGHT_RECORD", "MASTER_PORT",
                                      "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"});
}

TEST_CASE("threads of the workers") {
  Fixture fixture;
  CHECK(settings::variable(fixture.worker({"--nproc-per-node=2", "train.py"}, 0),
                           "OMP_NUM_THREADS") == "2");
  fixture.environment.erase("OMP_NUM_THREADS");
  CHECK(settings::variable(fixture.worker({"--nproc-per-node=2", "train.py"}, 0),
                           "OMP_NUM_THREADS") == "1");
  CHECK(contains(fixture.notices({"--nproc-per-node=2", "train.py"}), "OMP_NUM_THREADS is 1"));
  CHECK_FALSE(fixture.worker({"train.py"}, 0).contains("OMP_NUM_THREADS"));
}

TEST_CASE("one machine does not connect to an endpoint, and says so if that names a port") {
  Fixture fixture;
  for (const auto& [nnodes, endpoint, is_told] :
       {std::tuple{"1", "node0:29400", true}, std::tuple{"1", "localhost:0", false},
        std::tuple{"1:2", "node0:29400", false}}) {
    CAPTURE(nnodes);
    CAPTURE(endpoint);
    const auto notices = fixture.notices({std::string("--nnodes=") + nnodes, "--rdzv-backend=c10d",
                                          std::string("--rdzv-endpoint=") + endpoint, "train.py"});
    CHECK(contains(notices, "is not connected to") == is_told);
  }
}

TEST_CASE("a virtual local rank is 0 with one GPU") {
  Fixture fixture;
  const Words words = {"--nproc-per-node=2", "--virtual-local-rank", "train.py"};
  const auto seen = [&](int local_rank) {
    const auto worker = fixture.worker(words, local_rank);
    return worker.at("LOCAL_RANK") + " " + worker.at("RANK") + " " +
           worker.at("CUDA_VISIBLE_DEVICES");
  };
  CHECK(seen(0) == "0 0 0");
  CHECK(seen(1) == "0 1 1");
  fixture.environment["CUDA_VISIBLE_DEVICES"] = "4,6";
  CHECK(seen(0) == "0 0 4");
  CHECK(seen(1) == "0 1 6");
  fixture.environment["CUDA_VISIBLE_DEVICES"] = "4";
  CHECK(contains(fixture.refusal(words), "CUDA_VISIBLE_DEVICES is \"4\""));
}

TEST_CASE("settings that a C++ program inherits are in the plan") {
  Fixture fixture;
  fixture.environment.insert({{"ACCELERATE_USE_FSDP", "true"},
                              {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
                              {"WORLD_SIZE", "1"}});
  const LaunchPlan plan = fixture.plan({"--nproc-per-node=2", "train.py"});
  CHECK(plan.mode == Mode::fsdp);
  CHECK(plan.sharding.strategy == settings::Strategy::shard_grad_op);
  const auto runtime = settings::settings_from_environment(fixture.PlanFixture::worker(plan, 1));
  CHECK(runtime.sharding == plan.sharding);
  CHECK(runtime.identity.world_size == 2);

  fixture.environment["FSDP_SHARDING_STRATEGY"] = "HALF_SHARD";
  CHECK(contains(fixture.notices({"train.py"}), "FSDP_SHARDING_STRATEGY must be FULL_SHARD"));
}

TEST_CASE("torchrun's variables count for options without an Accelerate flag") {
  test::PlanFixture fixture(accelerate_front_end());
  fixture.set_gpus(2, 2);
  const Words words = {"--multi_gpu", "--num_processes", "2", "./train"};
  fixture.environment.insert({{"PET_RDZV_ID", "job7"},
                              {"PET_LOCAL_ADDR", "10.0.0.7"},
                              {"PET_REDIRECTS", "1:3"},
                              {"PET_LOCAL_RANKS_FILTER", "1"},
                              {"PET_SIGNALS_TO_HANDLE", "SIGUSR2"},
                              {"PET_SHUTDOWN_TIMEOUT", "3"},
                              {"PET_VIRTUAL_LOCAL_RANK", "1"},
                              {"PET_MAX_RESTARTS", "9"},
                              {"PET_NPROC_PER_NODE", "9"}});
  const LaunchPlan plan = fixture.plan(words);
  CHECK(plan.rendezvous.run_id == "job7");
  CHECK(plan.rendezvous.local_address == "10.0.0.7");
  CHECK(plan.output.to_file == Streams{0, 3});
  CHECK(plan.output.to_console == Streams{0, 0});
  CHECK(plan.supervision.shutdown_timeout.count() == 3);
  CHECK(plan.supervision.max_restarts == 0);
  const auto worker = fixture.worker(words, 1);
  CHECK(worker.at("LOCAL_RANK") == "0");
  CHECK(worker.at("CUDA_VISIBLE_DEVICES") == "1");
  CHECK(worker.at("TORCHELASTIC_SIGNALS_TO_HANDLE") == "SIGUSR2");

  fixture.environment["CUDA_VISIBLE_DEVICES"] = "0";
  fixture.environment["PET_SIGNALS_TO_HANDLE"] = "SIGNAL";
  fixture.environment["PET_SHUTDOWN_TIMEOUT"] = "soon";
  const std::string message = fixture.refusal(words);
  CHECK(contains(message, "PET_VIRTUAL_LOCAL_RANK needs a GPU for each of 2 workers"));
  CHECK(contains(message, "PET_SHUTDOWN_TIMEOUT must be an integer"));
}

TEST_CASE("every file except a binary is a Python program") {
  Fixture fixture;
  fixture.write("script", "print(1)\n");
  fixture.write("binary",
                "\x7f"
                "ELF",
                true);
  const std::string python = (fixture.folder() / "bin/python3").string();
  struct Case {
    Words words, command;
  };
  for (const auto& [words, command] : {
           Case{{"train.py", "-m", "--x"}, {python, "-u", "train.py", "-m", "--x"}},
           Case{{"script"}, {python, "-u", "script"}},
           Case{{"./script"}, {python, "-u", "./script"}},
           Case{{"./binary", "a"}, {"./binary", "a"}},
           Case{{"--no-python", "./train", "a"}, {"./train", "a"}},
           Case{{"-m", "pkg.train", "a"}, {python, "-u", "-m", "pkg.train", "a"}},
           Case{{"--run-path", "--no-python", "script"}, {python, "-u", "script"}},
       }) {
    CAPTURE(words);
    CHECK(fixture.plan(words).command == command);
  }
  const LaunchPlan plan = fixture.plan({"train.py", "${local_rank}-${local_rank}", "$$"});
  CHECK(worker_command(plan, 12) == Words{python, "-u", "train.py", "12-12", "$$"});
}

TEST_CASE("torchrun's help lists every flag") {
  const std::string help = help_text(torchrun_front_end());
  for (const settings::SettingRow& row : torchrun_front_end().table) {
    std::string flag = "--" + std::string(row.key);
    std::ranges::replace(flag, '_', '-');
    CAPTURE(flag);
    CHECK(contains(help, "  " + flag));
    CHECK_FALSE(row.help.empty());
  }
}

}  // namespace
}  // namespace acc::launcher
