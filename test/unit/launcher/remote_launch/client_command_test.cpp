// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/client_command.hpp"

#include "remote_launch/start_message.hpp"
#include "support/pipe.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace acc::launcher;
using acc::test::Pipe;
using Means = RemoteLaunchPlan::Means;

namespace {

RemoteLaunchPlan two_machines(Means means) {
  RemoteLaunchPlan plan;
  plan.means = means;
  plan.machines = {{"node0", {{"ACC_MACHINE_RANK", "0"}}},
                   {"me@node1", {{"ACC_MACHINE_RANK", "1"}}}};
  plan.arguments = {"launch", "--cpu", "train.py"};
  plan.executable = "/opt/it's/acclaunch";
  plan.working_directory = "/work";
  plan.environment = {{"ACC_NUM_MACHINES", "2"}};
  plan.client_options = {"-J", "gate"};
  plan.ssh_port = 2222;
  return plan;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

TEST_CASE("one ssh per machine") {
  const auto commands = remote_launch::client_commands(two_machines(Means::ssh), "/tmp/x");
  REQUIRE(commands.size() == 2);
  const std::vector<std::string>& words = commands[1].words;
  CHECK(commands[1].name == "machine 1 (me@node1)");
  CHECK(words.front() == "ssh");
  CHECK(words[1] == "-J");
  CHECK(words[2] == "gate");
  CHECK(has(words, "BatchMode=yes"));
  CHECK(*(std::ranges::find(words, "-p") + 1) == "2222");
  CHECK(*(std::ranges::find(words, "-E") + 1) == "/tmp/x/ssh.1");
  CHECK(words[words.size() - 3] == "--");
  CHECK(words[words.size() - 2] == "me@node1");
  CHECK(words.back().ends_with(" '/opt/it'\\''s/acclaunch'"));
  CHECK(commands[0].first_input != commands[1].first_input);
  CHECK(commands[1].is_controlled);
}

TEST_CASE("one pdsh for all machines; secrets are in a file because command lines are public") {
  RemoteLaunchPlan plan = two_machines(Means::pdsh);
  plan.environment["WANDB_API_KEY"] = "password";
  plan.environment["PDSH_SSH_ARGS_APPEND"] = "-F  config";
  plan.machines[0].variables["TOKEN"] = "password";
  const auto commands = remote_launch::client_commands(plan, "/tmp/x");
  REQUIRE(commands.size() == 1);
  const std::vector<std::string>& words = commands[0].words;
  CHECK(has(words, "node0,me@node1"));
  CHECK_FALSE(commands[0].is_controlled);
  CHECK(commands[0].environment.empty());
  CHECK(commands[0].input_file == "/tmp/x/start");
  CHECK(has(words, "/tmp/x/start"));
  const auto ssh = std::ranges::find(words, "ssh");
  CHECK(std::vector(ssh + 1, ssh + 5) == std::vector<std::string>{"-F", "config", "-J", "gate"});
  CHECK(*(std::ranges::find(words, "-p") + 1) == "2222");
  CHECK(words.back().ends_with(" '/opt/it'\\''s/acclaunch' %n"));
  for (const std::string& word : words) {
    CHECK(word.find("password") == std::string::npos);
    CHECK(word.find("train.py") == std::string::npos);
  }
  const Pipe pipe;
  pipe.write(commands[0].first_input);
  const remote_launch::StartMessage message =
      remote_launch::read_start_message(pipe.out.get(), std::chrono::seconds(20));
  CHECK(message.machines.size() == 2);
  CHECK(message.machines[0].at("TOKEN") == "password");
  CHECK(message.machines[1].at("ACC_MACHINE_RANK") == "1");
  CHECK(message.environment.at("WANDB_API_KEY") == "password");
  CHECK(message.environment.at("ACC_NUM_MACHINES") == "2");
  CHECK(message.arguments.back() == "train.py");
}

TEST_CASE("one srun for all machines, with one task per machine") {
  RemoteLaunchPlan plan = two_machines(Means::srun);
  plan.client_options = {"--mem=0"};
  plan.machines.assign(3, RemoteMachine{});
  const auto commands = remote_launch::client_commands(plan, "/tmp/x");
  REQUIRE(commands.size() == 1);
  const std::vector<std::string>& words = commands[0].words;
  CHECK(words[1] == "--mem=0");
  CHECK(has(words, "--nodes=3"));
  CHECK(has(words, "--ntasks=3"));
  CHECK(has(words, "--overlap"));
  CHECK(words.back() == "train.py");
  CHECK(commands[0].environment.at("ACC_CONTROL") == "stdin");
  CHECK(commands[0].environment.at("ACC_NUM_MACHINES") == "2");
}

TEST_CASE("variables that are passed on to other machines") {
  const acc::settings::Environment own = {
      {"HOME", "/home/me"},        {"PATH", "/bin"},
      {"SSH_AUTH_SOCK", "/tmp/s"}, {"NCCL_DEBUG", "INFO"},
      {"WANDB_API_KEY", "secret"}, {"SLURM_JOB_ID", "3"},
      {"ACC_CONTROL", "stdin"},    {"CUDA_VISIBLE_DEVICES", "1"},
      {"ACC_JOB_SECRET", "0"},     {"PYTHONPATH", "/p"},
      {"BASH_FUNC_x%%", "() {}"},  {"TERM", "xterm"},
      {"TERMS", "of use"}};
  const auto names = [&own](Means means) {
    std::vector<std::string> found;
    for (const auto& [name, value] : remote_launch::environment_for_other_machines(own, means)) {
      CHECK(own.at(name) == value);
      found.push_back(name);
    }
    return found;
  };
  using Names = std::vector<std::string>;
  CHECK(names(Means::ssh) == Names{"NCCL_DEBUG", "PATH", "PYTHONPATH", "TERMS", "WANDB_API_KEY"});
  CHECK(names(Means::pdsh) == names(Means::ssh));
  CHECK(names(Means::srun).empty());
}
