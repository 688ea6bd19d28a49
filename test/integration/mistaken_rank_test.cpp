// SPDX-License-Identifier: Apache-2.0
// One of four ranks makes a mistake and the others fail because of it. The report must name that
// rank, with its own message and exit code. bench/root_cause.py repeats this many times.
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

namespace {

using acc::test::contains;
using acc::test::Program;

constexpr int kRanks = 4;

/// Numbers of launchers: ranks that communicate by shared memory, by both, and by Gloo.
constexpr int kMachines[] = {1, 2, 4};

/// A mistake of rank R that root_cause_probe can make.
struct Mistake {
  const char* how;
  int status;  ///< status of rank and job; kOwn: 10 + R, kOthers: that of another rank
  const char* headline;
  const char* message;  ///< the rank's own error message; "": none
};
constexpr int kOwn = -1;
constexpr int kOthers = -2;

constexpr Mistake kMistakes[] = {
    {"skips", kOwn, "exited with code ", " was told: "},
    {"returns", 3, "exited with code 3\n", " gives up\n"},
    {"leaves", kOthers, "exited with code 0 while other ranks still needed it\n", ""},
    {"throws", 4, "exited with code 4\n", " failed: no data left\n"},
    {"killed", 128 + SIGKILL, "killed by SIGKILL (signal 9)\n", ""}};

std::vector<std::string> command(int machines, int machine, const std::string& port,
                                 int rank_at_fault, const char* how) {
  return {std::string(ACC_BIN_DIR) + "/acclaunch",
          "--cpu",
          "--num_processes",
          std::to_string(kRanks),
          "--num_machines",
          std::to_string(machines),
          "--machine_rank",
          std::to_string(machine),
          "--main_process_ip",
          "127.0.0.1",
          "--main_process_port",
          port,
          "--use_fsdp",
          std::string(ACC_BIN_DIR) + "/root_cause_probe",
          std::to_string(rank_at_fault),
          how};
}

/// A job with a mistake, which runs from the start of this object.
class Job {
 public:
  Job(int num_machines, const Mistake& mistake, int rank_at_fault)
      : mistake_(mistake), rank_at_fault_(rank_at_fault) {
    for (int machine = 0; machine < num_machines; ++machine) {
      machines_.push_back(std::make_unique<Program>(
          command(num_machines, machine, port_.text(), rank_at_fault, mistake.how)));
    }
  }

  void check() {
    const std::string rank = "rank " + std::to_string(rank_at_fault_);
    std::vector<int> statuses;
    for (const auto& machine : machines_) {
      statuses.push_back(machine->wait());
      CAPTURE(machine->err());
      CHECK(contains(machine->err(), "the job failed: " + rank + ": " + mistake_.headline));
      CHECK((mistake_.message[0] == '\0' ||
             contains(machine->err(), "| " + rank + mistake_.message)));
    }
    for (const int status : statuses) {
      CHECK(status == statuses.front());
      if (mistake_.status == kOthers) {
        CHECK(status != 0);
      } else {
        CHECK(status == (mistake_.status == kOwn ? 10 + rank_at_fault_ : mistake_.status));
      }
    }
  }

 private:
  const Mistake& mistake_;
  int rank_at_fault_;
  acc::test::ReservedPort port_;
  std::vector<std::unique_ptr<Program>> machines_;
};

}  // namespace

TEST_CASE("root cause: the rank that made the mistake, not one that failed because of it") {
  for (const int machines : kMachines) {
    for (const Mistake& mistake : kMistakes) {
      CAPTURE(machines);
      CAPTURE(mistake.how);
      std::vector<std::unique_ptr<Job>> jobs;  // side by side, because they wait most of the time
      for (int rank = 0; rank < kRanks; ++rank) {
        jobs.push_back(std::make_unique<Job>(machines, mistake, rank));
      }
      for (const auto& job : jobs) {
        job->check();
      }
    }
  }
}
