// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

// train_gpt --checkpoint under acclaunch: signals in the middle of a run.
namespace {

using acc::test::Program;
using acc::test::TemporaryFolder;
using acc::test::Watched;
namespace fs = std::filesystem;

constexpr int kForever = 1'000'000;
const std::string kBin = ACC_BIN_DIR;

/// Starts acclaunch with two workers that print their pids and train up to `steps`.
std::vector<std::string> command(int steps, const std::string& more,
                                 const std::vector<std::string>& flags = {}) {
  std::vector<std::string> all = {kBin + "/acclaunch",
                                  "--config_file",
                                  std::string(ACC_SOURCE_DIR) + "/configs/fsdp_full_shard.yaml",
                                  "--cpu",
                                  "--num_processes",
                                  "2"};
  all.insert(all.end(), flags.begin(), flags.end());
  const std::string data = std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy";
  all.insert(all.end(), {"/bin/sh", "-c",
                         "echo \"pid $$\"; exec " + kBin + "/train_gpt --data " + data +
                             " --layers 2 --heads 2 --dim 32 --seq_len 32 --global_batch 4"
                             " --lr 1e-3 --steps " +
                             std::to_string(steps) + " " + more});
  return all;
}

/// Returns the losses by step. Checks that no step was made twice.
std::vector<double> losses(const fs::path& metrics) {
  std::vector<double> all;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line) && !file.eof();) {  // whole lines
    const auto step = nlohmann::json::parse(line);
    all.push_back(step.at("loss"));
    REQUIRE(step.at("step") == all.size());
  }
  return all;
}

/// A run that gets a signal in the middle, and its output.
struct Interrupted {
  TemporaryFolder folder;
  std::string flags = "--checkpoint " + (folder.path() / "checkpoints").string() + " --metrics " +
                      metrics().string() + " --checkpoint_every ";
  Program launcher;

  explicit Interrupted(const std::vector<std::string>& launcher_flags = {}, int every = 1'000'000)
      : launcher(command(kForever, flags += std::to_string(every), launcher_flags)) {
    launcher.wait_for_text("] pid ", 2);
    launcher.wait_for_text("tokens/s");
  }

  [[nodiscard]] fs::path metrics() const { return folder.path() / "metrics.jsonl"; }
  [[nodiscard]] Watched workers() const { return {launcher.out(), "pid "}; }

  /// Checks the end of the run, and that a resumed run makes the steps of an uninterrupted one.
  void check(int status, const char* signal) {
    const int ended = launcher.wait();
    CAPTURE(launcher.out());
    CAPTURE(launcher.err());
    CHECK(ended == status);
    CHECK(launcher.out().find(std::string("received ") + signal + ": saved a checkpoint") !=
          std::string::npos);
    const int made = static_cast<int>(losses(metrics()).size());
    Program resumed(command(made + 5, flags));
    REQUIRE(resumed.wait() == 0);
    CHECK(resumed.out().find("resuming from step " + std::to_string(made) + " ") !=
          std::string::npos);
    const fs::path other = folder.path() / "unbroken.jsonl";
    Program unbroken(command(made + 5, "--metrics " + other.string()));
    REQUIRE(unbroken.wait() == 0);
    CHECK(losses(metrics()) == losses(other));  // bitwise, since the layout is the same
  }
};

}  // namespace

TEST_CASE("SIGUSR1 to the launcher: all ranks save and succeed") {
  Interrupted run;
  run.launcher.signal(SIGUSR1);
  run.launcher.signal(SIGUSR1);  // requests one checkpoint
  run.check(0, "SIGUSR1");
}

TEST_CASE("SIGUSR1 to one rank ends them all after the same step") {
  Interrupted run;
  REQUIRE(::kill(run.workers()[1], SIGUSR1) == 0);
  run.check(0, "SIGUSR1");
}

TEST_CASE("SIGTERM to the launcher: all ranks save before they end") {
  Interrupted run;
  run.launcher.signal(SIGTERM);
  run.check(128 + SIGTERM, "SIGTERM");
}

TEST_CASE("SIGTERM with save_async: all ranks save once more when the save in flight has ended") {
  Interrupted run({"--save_async"}, 1);
  run.launcher.signal(SIGTERM);
  run.check(128 + SIGTERM, "SIGTERM");
}

TEST_CASE("SIGTERM to one rank: all ranks save, and the job fails") {
  Interrupted run;
  REQUIRE(::kill(run.workers()[1], SIGTERM) == 0);
  run.check(128 + SIGTERM, "SIGTERM");
}

TEST_CASE("SIGUSR1 to the launcher of one machine ends the ranks of all") {
  const acc::test::ReservedPort port;
  const auto machine = [&port](int rank) {
    return std::vector<std::string>{
        "--num_machines",    "2",         "--machine_rank",      std::to_string(rank),
        "--main_process_ip", "127.0.0.1", "--main_process_port", port.text()};
  };
  const TemporaryFolder folder;
  const std::string flags = "--checkpoint " + folder.path().string();
  Program other(command(kForever, flags, machine(1)));
  Program first(command(kForever, flags, machine(0)));
  first.wait_for_text("tokens/s");
  other.signal(SIGUSR1);
  CHECK(first.wait() == 0);
  CHECK(other.wait() == 0);
  CHECK(first.out().find("received SIGUSR1: saved a checkpoint") != std::string::npos);
}

TEST_CASE("SIGTERM to the launcher continues a stopped rank, so that all ranks save") {
  Interrupted run;
  REQUIRE(::kill(run.workers()[1], SIGSTOP) == 0);
  run.launcher.signal(SIGTERM);
  run.check(128 + SIGTERM, "SIGTERM");
}

TEST_CASE("without --checkpoint the signals have their default effect") {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    CAPTURE(signal);
    Program launcher(command(kForever, ""));
    launcher.wait_for_text("tokens/s");
    launcher.signal(signal);
    CHECK(launcher.wait() == 128 + signal);
  }
}
