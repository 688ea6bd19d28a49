// SPDX-License-Identifier: Apache-2.0
// Launchers under a job manager, which managed_launcher.cpp simulates.
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>

using namespace acc::test;

namespace {

std::vector<std::string> managed(const std::vector<std::string>& flags, const std::string& script) {
  std::vector<std::string> command = {ACC_BIN_DIR "/managed_launcher", "--cpu"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return command;
}

std::vector<std::string> machine(int rank, const ReservedPort& port) {
  return {"--num_processes",     "2",
          "--num_machines",      "2",
          "--machine_rank",      std::to_string(rank),
          "--main_process_ip",   "127.0.0.1",
          "--main_process_port", port.text()};
}

}  // namespace

TEST_CASE("managed machines: one report, and job-wide lines once") {
  const ReservedPort port;
  const std::string script = "[ $RANK = 1 ] && exit 7; exec sleep 1000";
  Program machine0(managed(machine(0, port), script));
  Program machine1(managed(machine(1, port), script));
  CHECK(machine0.wait() == 7);
  CHECK(machine1.wait() == 7);
  CHECK(contains(machine0.err(), "the job failed: rank 1: exited with code 7"));
  CHECK_FALSE(contains(machine1.err(), "the job failed"));
  CHECK_FALSE(contains(machine1.err(), "waiting for"));
  CHECK(contains(machine0.err(), "acclaunch: machine 1 ("));
}

TEST_CASE("managed machines: a signal to workers and launcher is not a failure, in either order") {
  for (const bool workers_first : {true, false}) {
    CAPTURE(workers_first);
    Program job(managed({"--num_processes", "2"}, "echo pid=$$ end; exec sleep 1000"));
    job.wait_for_text(" end", 2);
    const Watched workers(job.out(), "pid=");
    const auto signal_workers = [&] {
      for (std::size_t i = 0; i < workers.size(); ++i) {
        ::kill(workers[i], SIGTERM);
      }
    };
    if (workers_first) {
      signal_workers();
    }
    job.signal(SIGTERM);
    job.signal(SIGTERM);
    if (!workers_first) {
      signal_workers();
    }
    CHECK(job.wait() == 128 + SIGTERM);
    CHECK_FALSE(contains(job.err(), "the job failed"));
    CHECK_FALSE(contains(job.err(), "killing"));
  }
}

TEST_CASE("managed machines: a repeated stop signal does not kill the workers") {
  Program job(
      managed({}, "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"));
  job.wait_for_text("up");
  job.signal(SIGTERM);
  job.wait_for_text("ending the workers");
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  CHECK(contains(job.out(), "saved"));
}

TEST_CASE("managed machines: a worker that alone was killed by a signal has failed") {
  Program job(managed({"--num_processes", "2"}, "[ $RANK = 1 ] && kill -TERM $$; exec sleep 1000"));
  CHECK(job.wait() == 128 + SIGTERM);
  CHECK(contains(job.err(), "the job failed: rank 1: killed by SIGTERM"));
}
