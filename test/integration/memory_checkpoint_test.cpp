// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

// train_gpt --checkpoint with --memory_checkpoint_every: workers that are killed.
namespace {

using acc::test::Program;
using acc::test::TemporaryFolder;
using acc::test::Watched;
namespace fs = std::filesystem;

const std::string kBin = ACC_BIN_DIR;

std::vector<std::string> run(int steps, const std::string& more,
                             const std::vector<std::string>& flags = {}) {
  const std::string data = std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy";
  std::vector<std::string> command = {kBin + "/acclaunch",
                                      "--config_file",
                                      std::string(ACC_SOURCE_DIR) + "/configs/fsdp_full_shard.yaml",
                                      "--cpu",
                                      "--num_processes",
                                      "2",
                                      "--max_restarts",
                                      "3",
                                      "--memory_checkpoint_every",
                                      "1"};
  command.insert(command.end(), flags.begin(), flags.end());
  const std::vector<std::string> program = {
      "/bin/sh", "-c",
      "echo \"pid $$\"; exec " + kBin + "/train_gpt --data " + data +
          " --layers 2 --heads 2 --dim 32 --seq_len 32 --global_batch 4 --lr 1e-3 --steps " +
          std::to_string(steps) + " " + more};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

/// The losses by step; the last one of a step that was made twice.
std::map<int, double> losses(const fs::path& metrics) {
  std::map<int, double> all;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto step = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!step.is_discarded()) {
      all[step.at("step")] = step.at("loss");
    }
  }
  return all;
}

/// Waits until a run has recorded three more steps. It prints a line of progress only every two
/// seconds, in which it makes hundreds.
void wait_for_steps(const fs::path& metrics) {
  const auto made = [&metrics] {
    std::ifstream file(metrics);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  const auto before = made();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  while (made() < before + 3) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

int times_in(const std::string& text, const std::string& part) {
  int times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PPid:")) {
      return std::stoi(line.substr(5));
    }
  }
  return 0;
}

/// A launcher and its worker that are stopped, as a machine that loses its power: no connection is
/// closed. Killed at the end.
class Frozen {
 public:
  explicit Frozen(const Program& launcher) {
    pid_t process = std::stoi(launcher.out().substr(launcher.out().rfind("pid ") + 4));
    for (bool is_last = false; !is_last; process = parent_of(process)) {
      is_last = process == launcher.pid();
      processes_.push_back(process);
      REQUIRE(::kill(process, SIGSTOP) == 0);
    }
  }
  ~Frozen() {
    for (const pid_t process : processes_) {
      ::kill(process, SIGKILL);
    }
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

 private:
  std::vector<pid_t> processes_;
};

/// Checks that a run on two ranks has recorded each step once, and the losses of an undisturbed
/// run, bit for bit: the layout is the same.
void check_undisturbed(const fs::path& folder, const fs::path& metrics) {
  const auto found = losses(metrics);
  const int made = found.rbegin()->first;
  CHECK(static_cast<int>(found.size()) == made);
  const fs::path other = folder / "unbroken.jsonl";
  Program unbroken(run(made, "--metrics " + other.string()));
  REQUIRE(unbroken.wait() == 0);
  CHECK(found == losses(other));
}

}  // namespace

TEST_CASE("workers that handle SIGTERM do not wait for a rank on a machine that is lost") {
  const TemporaryFolder folder;
  const acc::test::ReservedPort port;
  // Both end within the deadline of the test only if their collectives fail: no time limit does it.
  const std::vector<std::string> flags = {
      "--num_machines",      "2",
      "--min_machines",      "1",
      "--rdzv_backend",      "c10d",
      "--main_process_ip",   "127.0.0.1",
      "--main_process_port", port.text(),
      "--rdzv_conf",         "heartbeat_timeout=4,last_call_timeout=600",
      "--shutdown_timeout",  "3600"};
  const fs::path metrics = folder.path() / "metrics.jsonl";
  const std::string more =
      "--checkpoint " + (folder.path() / "run").string() + " --metrics " + metrics.string();
  Program first(run(1'000'000, more, flags));
  first.wait_for_text("waiting");
  Program second(run(1'000'000, more, flags));
  for (Program* const each : {&first, &second}) {
    each->wait_for_text("] pid ");
  }
  wait_for_steps(metrics);
  const Frozen frozen(second);
  first.wait_for_text("round 1: 1 machine, 1 worker");
  first.wait_for_text("] pid ", 2);  // it goes on alone
  wait_for_steps(metrics);
  first.signal(SIGUSR1);
  CHECK(first.wait() == 0);
  CAPTURE(first.err());
  CHECK(first.out().find("is lost") + first.err().find("is lost") != 2 * std::string::npos);
}

TEST_CASE("workers that are killed resume from memory, with the losses of an undisturbed run") {
  const TemporaryFolder folder;
  const fs::path metrics = folder.path() / "metrics.jsonl";
  const std::string series = (folder.path() / "run").string();
  Program launcher(run(1'000'000, "--checkpoint " + series +
                                      " --checkpoint_every 1000000 --metrics " + metrics.string()));
  launcher.wait_for_text("] pid ", 2);
  wait_for_steps(metrics);  // of which the first is in memory
  const auto first = Watched(launcher.out(), "pid ");
  REQUIRE(::kill(first[1], SIGKILL) == 0);
  launcher.wait_for_text("(memory)");
  wait_for_steps(metrics);  // it trains again
  launcher.signal(SIGUSR1);
  const int status = launcher.wait();
  CAPTURE(launcher.out());
  CAPTURE(launcher.err());
  CHECK(status == 0);
  CHECK(launcher.err().find("in memory (nothing on disk") != std::string::npos);
  check_undisturbed(folder.path(), metrics);
}

TEST_CASE("with --rejoin only the worker that is killed is started again") {
  const TemporaryFolder folder;
  const fs::path metrics = folder.path() / "metrics.jsonl";
  const std::string series = (folder.path() / "run").string();
  Program launcher(
      run(1'000'000,
          "--checkpoint " + series + " --checkpoint_every 1000000 --metrics " + metrics.string(),
          {"--rejoin"}));
  launcher.wait_for_text("] pid ", 2);
  wait_for_steps(metrics);  // of which the first is in memory
  const auto first = Watched(launcher.out(), "pid ");
  REQUIRE(first.size() == 2);
  // Rank 1, then rank 0; each time the other one stays.
  const auto rank_of = [&](pid_t pid) {
    const std::string& out = launcher.out();
    const auto at = out.find("pid " + std::to_string(pid) + "\n");
    return out.substr(out.rfind('[', at) + 1, 1);
  };
  std::map<std::string, pid_t> of_rank;
  for (const pid_t pid : {first[0], first[1]}) {
    of_rank[rank_of(pid)] = pid;
  }
  int kills = 0;
  for (const std::string rank : {"1", "0"}) {
    REQUIRE(::kill(of_rank.at(rank), SIGKILL) == 0);
    ++kills;
    launcher.wait_for_text("] pid ", 2 + kills);
    launcher.wait_for_text("all workers have rejoined", kills);
    wait_for_steps(metrics);  // it trains again
    of_rank[rank] = std::stoi(launcher.out().substr(launcher.out().rfind("pid ") + 4));
    for (const auto& [each, pid] : of_rank) {
      CHECK(::kill(pid, 0) == 0);
    }
  }
  launcher.signal(SIGUSR1);
  const int status = launcher.wait();
  CAPTURE(launcher.out());
  CAPTURE(launcher.err());
  CHECK(status == 0);
  CHECK(times_in(launcher.out(), "pid ") == 4);
  CHECK(launcher.err().find("starting it again, the others rejoin (restart 2 of 3)") !=
        std::string::npos);
  check_undisturbed(folder.path(), metrics);
}

TEST_CASE("workers that do not rejoin are all started again") {
  const TemporaryFolder folder;
  const std::string marker = (folder.path() / "marker").string();
  Program launcher({kBin + "/acclaunch", "--cpu", "--num_processes", "2", "--max_restarts", "2",
                    "--rejoin", "--shutdown_timeout", "1", "/bin/sh", "-c",
                    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; "
                    "[ $RANK = 1 ] && [ ! -e " +
                        marker + " ] && touch " + marker +
                        " && exit 3; "
                        "exec sleep 1000"});
  CHECK(launcher.wait() == 0);
  CAPTURE(launcher.err());
  CHECK(launcher.err().find("starting it again, the others rejoin (restart 1 of 2)") !=
        std::string::npos);
  CHECK(launcher.err().find("workers did not rejoin within 1 s") != std::string::npos);
}

TEST_CASE("--rejoin, --spares and --elastic_replicas are refused where they are not possible") {
  struct Refused {
    std::vector<std::string> flags;
    std::string why;
  };
  const auto elastic = [](std::vector<std::string> flags) {
    std::vector<std::string> all = {
        "--use_fsdp", "--fsdp_sharding_strategy", "NO_SHARD",  "--num_machines",
        "2",          "--num_processes",          "2",         "--rdzv_backend",
        "c10d",       "--main_process_ip",        "127.0.0.1", "--memory_checkpoint_every",
        "1",          "--elastic_replicas",       "1"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  };
  for (const Refused& each :
       {Refused{elastic({"--rdzv_backend", "static", "--machine_rank", "0"}),
                "needs a rendezvous of kind c10d"},
        Refused{elastic({"--machine_rank", "1"}), "none is bound to a rank"},
        Refused{elastic({"--fsdp_sharding_strategy", "FULL_SHARD"}),
                "needs NO_SHARD or HYBRID_SHARD"},
        Refused{elastic({"--trace", "unused"}), "--elastic_replicas does not work with --trace"},
        Refused{elastic({"--elastic_replicas", "2"}), "below the number of machines, 2"},
        Refused{elastic({"--num_machines", "4", "--num_processes", "4", "--min_machines", "2"}),
                "is 1, but the job may start with 2 machines"},
        Refused{{"--num_processes", "2"}, "needs a job with restarts"},
        Refused{{"--num_processes", "1", "--max_restarts", "1"}, "needs several workers"},
        Refused{{"--num_processes", "2", "--max_restarts", "1", "--spares", "1"},
                "needs a rendezvous of kind c10d"},
        Refused{
            {"--num_processes", "2", "--max_restarts", "1", "--spares", "1", "--num_machines", "2",
             "--rdzv_backend", "c10d", "--machine_rank", "1", "--main_process_ip", "127.0.0.1"},
            "none is bound to a rank"}}) {
    std::vector<std::string> command = {kBin + "/acclaunch", "--cpu", "--rejoin"};
    command.insert(command.end(), each.flags.begin(), each.flags.end());
    command.insert(command.end(), {"--", "/bin/true"});
    Program launcher(command);
    CHECK(launcher.wait() == 2);
    CAPTURE(launcher.err());
    CHECK(launcher.err().find(each.why) != std::string::npos);
  }
}
