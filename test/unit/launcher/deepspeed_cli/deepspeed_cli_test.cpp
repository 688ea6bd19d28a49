// SPDX-License-Identifier: Apache-2.0
#include "plan_fixture.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::contains;
using Streams = std::vector<OutputPlan::Streams>;
using Words = std::vector<std::string>;

class Fixture : public test::PlanFixture {
 public:
  Fixture() : PlanFixture(deepspeed_front_end()) {
    write("train.py", "");
    write("bin/python3", "#!/bin/sh\n", true);
    environment["PATH"] = folder().string() + "/bin:/usr/bin:/bin";
    environment["HOME"] = (folder() / "home").string();
  }

  [[nodiscard]] std::string python() const { return (folder() / "bin/python3").string(); }
};

TEST_CASE("deepspeed on one machine") {
  struct Case {
    int gpus;
    Words words;
    int workers;
    std::string shown;  ///< CUDA_VISIBLE_DEVICES
  };
  for (const auto& [gpus, words, workers, shown] : {
           Case{4, {}, 4, "0,1,2,3"},
           Case{4, {"--num_gpus", "2"}, 2, "0,1"},
           Case{4, {"--num_accelerators=2"}, 2, "0,1"},
           Case{4, {"--num_g=1", "--num_nodes=1"}, 1, "0"},
           Case{4, {"--include", "localhost:3,1"}, 2, "1,3"},
           Case{4, {"-i=localhost:2"}, 1, "2"},
           Case{4, {"-e", "localhost:0"}, 3, "1,2,3"},
           Case{0, {}, 1, "0"},
           Case{0, {"--num_gpus=3"}, 3, "0,1,2"},
           Case{0, {"-ilocalhost:0,1"}, 2, "0,1"},
       }) {
    CAPTURE(words);
    Fixture fixture;
    fixture.set_gpus(gpus, gpus);
    Words all = words;
    all.emplace_back("train.py");
    const LaunchPlan plan = fixture.plan(all);
    CHECK(plan.identity == Identity::deepspeed);
    CHECK(plan.layout.local_world_size == workers);
    CHECK(plan.layout.num_processes == workers);
    CHECK(plan.layout.num_machines == 1);
    CHECK(plan.rendezvous.address == "127.0.0.1");
    CHECK(plan.rendezvous.port == 29500);
    CHECK((plan.device == settings::Device::cuda) == (gpus > 0));
    CHECK(contains(fixture.notices(all), "no GPU on this machine") == (gpus == 0));
    CHECK(fixture.PlanFixture::worker(plan, 0).at("CUDA_VISIBLE_DEVICES") == shown);
  }
}

TEST_CASE("CUDA_VISIBLE_DEVICES selects GPUs if no flag does") {
  Fixture fixture;
  fixture.set_gpus(4, 0);
  fixture.environment["CUDA_VISIBLE_DEVICES"] = "3,1";
  fixture.facts.visible_gpus = {3, 1};
  const LaunchPlan plan = fixture.plan({"train.py"});
  CHECK(plan.layout.local_world_size == 2);
  CHECK(plan.binding.workers.at(0).gpu == 3);
  CHECK(fixture.PlanFixture::worker(plan, 1).at("CUDA_VISIBLE_DEVICES") == "3,1");
  CHECK(fixture.notices({"train.py"}).empty());

  CHECK(fixture.worker({"--num_gpus=3", "train.py"}, 1).at("CUDA_VISIBLE_DEVICES") == "0,1,2");
  CHECK(contains(fixture.notices({"--num_gpus=3", "train.py"}),
                 "CUDA_VISIBLE_DEVICES has no effect"));

  fixture.environment["CUDA_VISIBLE_DEVICES"] = "-1";
  fixture.facts.visible_gpus = {};
  CHECK(fixture.plan({"train.py"}).device == settings::Device::cpu);
  CHECK(fixture.worker({"train.py"}, 0).at("CUDA_VISIBLE_DEVICES") == "-1");
}

TEST_CASE("a worker gets its rank in DeepSpeed's variables, which the runtime reads") {
  Fixture fixture;
  fixture.environment.insert({{"LOCAL_WORLD_SIZE", "7"},  // from an outer torchrun
                              {"GROUP_RANK", "5"},
                              {"TORCHELASTIC_RUN_ID", "outer"}});
  fixture.write("hosts", "a slots=2\nb slots=2\n");
  const auto worker = fixture.worker(
      {"-H", "hosts", "--no_ssh", "--node_rank=1", "--master_port=29600", "train.py"}, 1);
  const settings::Environment expected = {{"RANK", "3"},
                                          {"LOCAL_RANK", "1"},
                                          {"WORLD_SIZE", "4"},
                                          {"LOCAL_SIZE", "2"},
                                          {"CROSS_RANK", "1"},
                                          {"CROSS_SIZE", "2"},
                                          {"MASTER_ADDR", "a"},
                                          {"MASTER_PORT", "29600"},
                                          {"CUDA_VISIBLE_DEVICES", "0,1"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(settings::variable(worker, name) == value);
  }
  for (const auto& [name, value] : worker) {
    CAPTURE(name);
    const bool known = expected.contains(name) || name.starts_with("ACC_");
    CHECK((known || fixture.environment.contains(name)));
    CHECK((known || !name.starts_with("TORCHELASTIC_")));
  }
  const auto identity = settings::settings_from_environment(worker).identity;
  CHECK(identity.rank == 3);
  CHECK(identity.local_rank == 1);
  CHECK(identity.local_world_size == 2);
  CHECK(identity.node_rank == 1);
  CHECK(identity.num_nodes == 2);
  CHECK(identity.master_addr == "a");
}

TEST_CASE("several machines, with and without ssh") {
  Fixture fixture;
  fixture.write("hosts", "host1 slots=2\nhost0.cluster slots=1\nhost2 slots=4\n");
  const auto plan = [&](Words words) {
    words.insert(words.begin(), {"--hostfile", "hosts"});
    words.emplace_back("train.py");
    return fixture.plan(words);
  };
  const LaunchPlan named = plan({"--no_ssh"});  // the host name of this machine is host0
  CHECK(named.layout.machine_rank == 1);
  CHECK(named.layout.num_machines == 3);
  CHECK(named.layout.local_world_size == 1);
  CHECK(named.layout.num_processes == std::nullopt);  // the rendezvous adds them up
  CHECK(named.rendezvous.address == "host1");
  CHECK(named.rendezvous.min_machines == 3);
  CHECK(plan({"--no_ssh", "--node_rank=2"}).layout.local_world_size == 4);
  CHECK(plan({"--no_ssh", "--node_rank=1", "--num_nodes=2"}).layout.num_machines == 2);
  CHECK(plan({"--no_ssh", "--node_rank=0", "--num_gpus=1"}).layout.num_processes == 3);
  CHECK(plan({"--no_ssh", "--node_rank=1", "--master_addr=10.0.0.1", "-i", "host1@host2:1,3"})
            .rendezvous.address == "10.0.0.1");
  // A single host is this machine, whatever its name.
  CHECK(plan({"--include", "host2:1,3"}).layout.local_world_size == 2);
  CHECK(plan({"--include", "host2:1,3"}).rendezvous.address == "127.0.0.1");
  // Without --no_ssh the machines are started from here.
  const auto start =
      fixture.plan({"-H", "hosts", "--master_port=1", "-e", "host2:0", "train.py", "a b"}).start;
  REQUIRE(start);
  CHECK(start->means == RemoteLaunchPlan::Means::ssh);
  CHECK(start->arguments ==
        Words{"deepspeed", "-H", "hosts", "--master_port=1", "-e", "host2:0", "train.py", "a b"});
  REQUIRE(start->machines.size() == 3);
  CHECK(start->machines[1].name == "host0.cluster");
  CHECK(start->machines[1].variables == settings::Environment{{"ACC_MACHINE_RANK", "1"}});
  CHECK(start->environment.at("ACC_HOSTS") == "host1:0,1@host0.cluster:0@host2:1,2,3");
  CHECK(start->environment.at("ACC_MAIN_PROCESS_PORT") == "1");
  CHECK(plan({"--launcher", "pdsh"}).start->means == RemoteLaunchPlan::Means::pdsh);
  CHECK(plan({"--shutdown_timeout=70"}).supervision.shutdown_timeout == std::chrono::seconds(70));
  fixture.write("users", "me@host1 slots=1\nhost2 slots=1\n");
  const auto users = fixture.plan({"-H", "users", "train.py"}).start;
  CHECK(users->machines.front().name == "me@host1");
  CHECK(users->environment.at("ACC_MAIN_PROCESS_IP") == "host1");
  // On one of the machines that were started: these variables are set there.
  fixture.environment["ACC_MACHINE_RANK"] = "5";
  for (const auto& [name, value] : users->environment) {
    fixture.environment[name] = value;
  }
  CHECK(contains(fixture.refusal({"-H", "users", "train.py"}), "ACC_MACHINE_RANK is 5"));
  fixture.environment["ACC_MACHINE_RANK"] = "1";
  CHECK(fixture.plan({"-H", "users", "train.py"}).rendezvous.address == "host1");
}

TEST_CASE("invalid values are rejected, all at once") {
  struct Case {
    Words words, parts;
  };
  for (const auto& [words, parts] : {
           Case{{"--include", "a", "--exclude", "b", "--num_gpus", "1"},
                {"--include and --exclude contradict each other", "--include and --num_gpus both",
                 "--exclude and --num_gpus both"}},
           Case{{"--num_gpus", "0", "--node_rank", "x"},
                {"--num_gpus must be an integer 1..", "--node_rank must be an integer 0.."}},
           Case{{"--num_gpus", "8"}, {"--num_gpus 8, but this machine has 4"}},
           Case{{"--num_nodes", "2"}, {"--num_nodes 2, but there is no hostfile"}},
           Case{{"-H", "hosts", "--num_nodes", "3"}, {"--num_nodes 3, but hosts names 2"}},
           Case{{"-H", "hosts", "--num_gpus", "8"}, {"--num_gpus 8, but hosts:1: a has 2"}},
           Case{{"-H", "hosts", "--no_ssh"},
                {"--no_ssh needs --node_rank, because host0 is not in"}},
           Case{{"-H", "hosts", "--no_ssh", "--node_rank", "2"}, {"--node_rank 2 must be below"}},
           Case{{"-H", "hosts", "--no_ssh", "--node_rank", "1"},
                {"hosts:2: b has no slot 7", "GPUs on this machine is 4"}},
           Case{{"-H", "hosts", "--no_ssh", "--node_rank=0", "--master_port=0",
                 "--enable_each_rank_log=train.py", "--bind_core_list=1-", "--module",
                 "--no_python", "--bind_cores_to_rank", "--deepspeed_config=none.json"},
                {"--master_port 0", "--enable_each_rank_log must be a folder",
                 "--bind_core_list must be numbers and ranges", "--module and --no_python",
                 "cannot read", "none.json"}},
           Case{{"-H", "."}, {"--hostfile . is a folder"}},
           Case{{"-H", "bad"}, {"bad:1: expected NAME slots=N", "bad:2: expected"}},
           Case{{"--num_gpsu", "2"}, {"unknown flag --num_gpsu; did you mean --num_gpus?"}},
           Case{{"--launcher", "ssh"}, {"--launcher must be pdsh, openmpi"}},
           Case{{"--deepspeed"}, {"--deepspeed: this is a flag of the program"}},
           Case{{"--autotuning=run", "--elastic_training", "--venv_script=a", "--save_pid"},
                {"--autotuning: ", "--elastic_training: ", "--venv_script: ", "--save_pid: "}},
           Case{{"--bind_cores_to_rank", "--bind_core_list=0,99"}, {"names core 99"}},
           Case{{"--engine", "jax"}, {"--engine must be torch or acc, got \"jax\""}},
           Case{{"--engine", "acc", "--bind_cores_to_rank", "--bind_core_list=0,99"},
                {"--engine acc: the Python package acclaunch is neither in", "names core 99"}},
       }) {
    CAPTURE(words);
    Fixture fixture;
    fixture.set_gpus(4, 4);
    fixture.write("hosts", "a slots=2\nb slots=8\n");
    fixture.write("bad", "a\nb slots\n");
    Words all = words;
    all.emplace_back("train.py");
    const std::string message = fixture.refusal(all);
    CAPTURE(message);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(message, part));
    }
  }
  CHECK(contains(Fixture().notices({"-H", "nowhere", "train.py"}), "there is no hostfile nowhere"));
  CHECK(!contains(Fixture().notices({"--hostfile=", "train.py"}), "there is no hostfile"));
}

TEST_CASE("the program and its local rank") {
  const Fixture fixture;
  fixture.write("binary",
                "\x7f"
                "ELF",
                true);
  struct Case {
    Words words, command;
  };
  for (const auto& [words, command] : {
           Case{{"train.py", "--deepspeed", "x"},
                {fixture.python(), "-u", "train.py", "--local_rank=1", "--deepspeed", "x"}},
           Case{{"--no_local_rank", "train.py", "x"}, {fixture.python(), "-u", "train.py", "x"}},
           Case{{"--module", "pkg", "x"},
                {fixture.python(), "-u", "-m", "pkg", "--local_rank=1", "x"}},
           Case{{"--no_python", "./train", "x"}, {"./train", "--local_rank=1", "x"}},
           Case{{"./binary", "x"}, {"./binary", "x"}},
       }) {
    CAPTURE(words);
    CHECK(worker_command(fixture.plan(words), 1) == command);
  }
}

TEST_CASE("the variables of .deepspeed_env are passed to the workers") {
  Fixture fixture;
  fixture.write("home/.deepspeed_env", "A=1\nB=1\n");
  fixture.write(".deepspeed_env", "# here\n\nB=2=3\r\nC=\n");
  fixture.environment["B"] = "0";
  const auto worker = fixture.worker({"train.py"}, 0);
  CHECK(worker.at("A") == "1");
  CHECK(worker.at("B") == "2=3");
  CHECK(worker.at("C").empty());
  CHECK(contains(fixture.notices({"train.py"}), "the workers get 2 variables from "));
  fixture.write(".deepspeed_env", " D = \"x y\" \nE=$HOME/x\n");
  CHECK(fixture.worker({"train.py"}, 0).at("D") == "x y");
  CHECK(fixture.worker({"train.py"}, 0).at("E") == "$HOME/x");
  CHECK(contains(fixture.notices({"train.py"}), "have no special meaning in the values of E"));

  fixture.environment["DS_ENV_FILE"] = "mine";
  CHECK_FALSE(fixture.worker({"train.py"}, 0).contains("A"));
  fixture.write("mine", "A=7\nnonsense\n=1\nexport A=1\n");
  const std::string message = fixture.refusal({"train.py"});
  CHECK(contains(message, "mine:2: expected NAME=VALUE, got \"nonsense\""));
  CHECK(contains(message, "mine:3: expected NAME=VALUE, got \"=1\""));
  CHECK(contains(message, "mine:4: expected NAME=VALUE, got \"export A=1\""));
}

TEST_CASE("a DeepSpeed JSON file before the program configures the C++ runtime") {
  const Fixture fixture;
  fixture.write("ds.json", R"({"train_micro_batch_size_per_gpu": "auto",
                               "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}})");
  const Words words = {"--num_gpus=2", "--deepspeed_config", "ds.json", "./train"};
  const LaunchPlan plan = fixture.plan(words);
  CHECK(plan.mode == Mode::deepspeed);
  CHECK(plan.sharding.strategy == settings::Strategy::full_shard);
  const auto runtime = settings::settings_from_environment(fixture.PlanFixture::worker(plan, 1));
  CHECK(runtime.sharding == plan.sharding);
  CHECK(runtime.sharding.mixed_precision == settings::MixedPrecision::bf16);
  CHECK(runtime.identity.local_world_size == 2);

  fixture.write("bad.json", R"({"zero_optimization": {"stage": 4}})");
  CHECK(contains(fixture.refusal({"--deepspeed_config=bad.json", "./train"}),
                 "bad.json:1: zero_optimization.stage must be"));
}

TEST_CASE("output files, core binding and --quiet") {
  const Fixture fixture;
  const LaunchPlan logged =
      fixture.plan({"--num_gpus=2", "--enable_each_rank_log=logs", "train.py"});
  CHECK(logged.output.to_file == Streams{3, 3});
  CHECK(logged.output.to_console == Streams{0, 0});
  CHECK(logged.output.keeps_directory);
  CHECK(logged.output.directory.starts_with((fixture.folder() / "logs").string()));
  CHECK(fixture.plan({"--enable_each_rank_log=None", "train.py"}).output.to_file.empty());

  const LaunchPlan bound = fixture.plan(
      {"--num_gpus=2", "--bind_cores_to_rank", "--bind_core_list=0-1,4-5", "train.py"});
  CHECK(bound.binding.workers.at(0).cpus == std::vector<int>{0, 1});
  CHECK(bound.binding.workers.at(1).cpus == std::vector<int>{4, 5});
  CHECK(fixture.PlanFixture::worker(bound, 0).at("OMP_NUM_THREADS") == "2");
  CHECK(fixture.plan({"train.py"}).binding.workers.at(0).cpus.empty());
  CHECK_FALSE(fixture.worker({"--num_gpus=2", "train.py"}, 0).contains("OMP_NUM_THREADS"));

  CHECK_FALSE(fixture.notices({"train.py"}).empty());
  CHECK(fixture.notices({"-q", "train.py"}).empty());
}

TEST_CASE("deepspeed's help lists every flag") {
  const std::string help = help_text(deepspeed_front_end());
  for (const settings::SettingRow& row : deepspeed_front_end().table) {
    CAPTURE(row.key);
    CHECK(contains(help, "  --" + std::string(row.key)));
    CHECK_FALSE(row.help.empty());
  }
}

}  // namespace
}  // namespace acc::launcher
