// SPDX-License-Identifier: Apache-2.0
// Elastic jobs: machines join and leave, and a rendezvous daemon forms the rounds.
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <utility>

using namespace acc::test;

namespace {

using Flags = std::vector<std::string>;

constexpr const char* kRunning = "echo round $RANK/$WORLD_SIZE end; exec sleep 1000";

Flags daemon_at(const ReservedPort& port) {
  return {ACC_BIN_DIR "/acc-rendezvous", "--port", port.text()};
}

/// Returns the command of one of `nodes` machines that meet at the port.
Flags machine(const ReservedPort& port, const std::string& nodes, const std::string& script,
              const Flags& more = {}) {
  Flags flags = c10d_flags(nodes, port, {"--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=1"});
  flags.insert(flags.end(), more.begin(), more.end());
  return torchrun(flags, script);
}

Flags with_rank(const ReservedPort& port, const std::string& rank) {
  return machine(port, "1:3", kRunning, {"--node-rank", rank});
}

/// Waits until both machines are in a round of two after `act`. One may have been formed before,
/// while the third machine was starting.
template <typename Act>
void expect_round_of_two(Program& rank_0, Program& rank_1, Act act) {
  const int earlier_0 = rank_0.count("round 0/2 end");
  const int earlier_1 = rank_1.count("round 1/2 end");
  act();
  rank_0.wait_for_text("round 0/2 end", earlier_0 + 1);
  rank_1.wait_for_text("round 1/2 end", earlier_1 + 1);
}

}  // namespace

TEST_CASE("elastic: roles have ranks of their own, with any rendezvous") {
  for (const bool is_static : {false, true}) {
    for (const auto& [role, expected] : std::initializer_list<std::pair<const char*, Flags>>{
             {"trainer", {"trainer 0 of 3\n", "trainer 1 of 3\n", "trainer 2 of 3\n"}},
             {"reader", {"trainer 0 of 2\n", "trainer 1 of 2\n", "reader 0 of 1\n"}}}) {
      CAPTURE(is_static);
      CAPTURE(role);
      const ReservedPort port;
      const auto start = [&](std::size_t rank, const char* of, const char* workers) {
        Flags flags = is_static ? static_flags(rank, port) : c10d_flags("2", port);
        flags.insert(flags.end(), {"--role", of, "--nproc-per-node", workers});
        return std::make_unique<Program>(
            torchrun(flags, "echo $ROLE_NAME $ROLE_RANK of $ROLE_WORLD_SIZE"));
      };
      const auto one = start(0, "trainer", "2");
      const auto two = start(1, role, "1");
      CHECK(one->wait() == 0);
      CHECK(two->wait() == 0);
      for (const std::string& line : expected) {
        CHECK_MESSAGE(contains(one->out() + two->out(), line), line);
      }
    }
  }
}

TEST_CASE("elastic: one machine of 1:2 may choose the port") {
  Program job(torchrun({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                        "localhost:0", "--rdzv-conf", "last_call_timeout=1,timeout=x"},
                       "echo $RANK of $WORLD_SIZE"));
  CHECK(job.wait() == 0);
  CHECK(contains(job.out(), "0 of 1\n"));
  CHECK(contains(job.err(), "this machine chooses the port"));
}

TEST_CASE("elastic: a machine that is killed, rejoins or leaves starts a new round") {
  const ReservedPort port;
  Program daemon(daemon_at(port));
  daemon.wait_for_text("listening on");
  Program second(with_rank(port, "1"));
  Program first(with_rank(port, "0"));
  auto third = std::make_unique<Program>(with_rank(port, "2"));
  first.wait_for_text("round 0/3 end");
  second.wait_for_text("round 1/3 end");
  third->wait_for_text("round 2/3 end");

  expect_round_of_two(second, *third, [&] { first.signal(SIGKILL); });
  CHECK(contains(second.err(), ") is lost: its launcher has ended\n"));

  Program again(with_rank(port, "0"));
  again.wait_for_text("round 0/3 end");
  second.wait_for_text("round 1/3 end", 2);
  third->wait_for_text("round 2/3 end", 2);

  expect_round_of_two(again, *third, [&] { second.signal(SIGTERM); });
  CHECK(second.wait() == 128 + SIGTERM);

  third->signal(SIGTERM);
  CHECK(third->wait() == 128 + SIGTERM);
  again.wait_for_text("round 0/1 end");
  CHECK(contains(again.err(), ": 1 machine, 1 worker; this is machine 0\n"));
  again.signal(SIGTERM);
  CHECK(again.wait() == 128 + SIGTERM);
  for (const Program* each : {&first, &second, &again}) {
    CHECK_FALSE(contains(each->err(), "machine -1"));
  }
}

TEST_CASE("elastic: a job reconnects to a restarted daemon and continues its round numbers") {
  const ReservedPort port;
  const TemporaryFolder folder;
  auto daemon = std::make_unique<Program>(daemon_at(port));
  daemon->wait_for_text("listening on");
  const Flags logs = {"--log-dir", folder.path().string(), "-t", "3"};
  Program one(machine(port, "2:3", kRunning, logs));
  Program other(machine(port, "2:3", kRunning, logs));
  one.wait_for_text("/2 end");
  other.wait_for_text("/2 end");
  daemon->signal(SIGKILL);
  one.wait_for_text("waiting for the rendezvous (");
  other.wait_for_text("waiting for the rendezvous (");
  daemon = std::make_unique<Program>(daemon_at(port));  // its port is free
  daemon->wait_for_text("listening on");
  for (Program* each : {&one, &other}) {
    each->wait_for_text("/2 end", 2);
    CHECK(contains(each->err(), "acclaunch: round 1: 2 machines, 2 workers; this is machine "));
  }
  one.signal(SIGTERM);  // the remaining machine is fewer than the minimum
  CHECK(one.wait() == 128 + SIGTERM);
  CHECK(other.wait() == 128 + SIGTERM);
  int logs_of_rounds = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    const bool is_log = entry.path().filename() == "stdout.log";
    logs_of_rounds += is_log && contains(file_text(entry.path()), "round ") ? 1 : 0;
  }
  CHECK(logs_of_rounds == 4);
}

TEST_CASE("elastic: a stop signal to all machines at once counts once per machine") {
  for (const char* nodes : {"2", "1:2"}) {
    CAPTURE(nodes);
    const ReservedPort port;
    Program daemon(daemon_at(port));
    daemon.wait_for_text("listening on");
    const std::string script =
        "trap 'sleep 0.3; echo saved; exit 0' TERM; echo worker-up; while :; do sleep 1000 & wait; "
        "done";
    Program one(machine(port, nodes, script));
    Program other(machine(port, nodes, script));
    one.wait_for_text("worker-up");
    other.wait_for_text("worker-up");
    one.signal(SIGTERM);
    other.wait_for_text("stopped by SIGTERM");  // knows that `one` stopped
    other.signal(SIGTERM);
    CHECK(one.wait() == 128 + SIGTERM);
    CHECK(other.wait() == 128 + SIGTERM);
    CHECK(contains(one.out(), "saved\n"));
    CHECK(contains(other.out(), "saved\n"));
  }
}

TEST_CASE("elastic: when the time limit passes on all machines, workers still have time to end") {
  const ReservedPort port;
  const std::string script =
      "trap 'sleep 0.3; echo saved; exit 0' TERM; while :; do sleep 1000 & wait; done";
  Program one(machine(port, "2", script, {"--timeout", "5"}));
  Program other(machine(port, "2", script, {"--timeout", "5"}));
  for (Program* each : {&one, &other}) {
    CHECK(each->wait() == 124);
    CHECK(contains(each->out(), "saved\n"));
    CHECK_FALSE(contains(each->err(), "killing"));
  }
}

TEST_CASE("elastic: a machine that stops during the last call leaves a round of the others") {
  const ReservedPort port;
  Program daemon(daemon_at(port));
  daemon.wait_for_text("listening on");
  const Flags member =
      machine(port, "1:3", "echo $RANK of $WORLD_SIZE", {"--rdzv-conf", "last_call_timeout=1000"});
  Program one(member);
  one.wait_for_text("waiting for machines: 1 of 1 to 3 are here");
  Program gone(member);
  gone.wait_for_text("waiting for machines: 2 of 1 to 3 are here");
  gone.signal(SIGTERM);
  CHECK(gone.wait() == 128 + SIGTERM);
  CHECK_FALSE(contains(gone.err(), "machine -1"));
  Program second(member);
  second.wait_for_text("waiting for machines: 2 of 1 to 3 are here");
  Program third(member);  // the last one: no further call
  CHECK(one.wait() == 0);
  CHECK(second.wait() == 0);
  CHECK(third.wait() == 0);
  CHECK(one.out() == prefix(0) + "0 of 3\n");
  CHECK(third.out() == prefix(2) + "2 of 3\n");
}

TEST_CASE("elastic: a waiting machine is informed that the job has ended, and has not succeeded") {
  const ReservedPort port;
  Program daemon(daemon_at(port));
  daemon.wait_for_text("listening on");
  Program one(machine(port, "2", kRunning));
  Program other(machine(port, "2", kRunning));
  one.wait_for_text("/2 end");
  other.wait_for_text("/2 end");
  Program spare(machine(port, "2", kRunning));
  spare.wait_for_text("waiting for a place: all 2 machines of the job are running");
  one.signal(SIGTERM);
  CHECK(one.wait() == 128 + SIGTERM);
  CHECK(other.wait() == 128 + SIGTERM);
  CHECK(spare.wait() == 1);
  CHECK(spare.out().empty());
  CHECK(contains(spare.err(), ": the job 'job' has ended\n"));
  CHECK(contains(spare.err(), "nothing was run here\n"));
}

TEST_CASE("elastic: a machine whose log folder cannot be created fails at once") {
  const ReservedPort port;
  Program job(machine(port, "2", "echo started", {"--log-dir", "/proc/nowhere", "-r", "3"}));
  CHECK(job.wait() == 2);
  CHECK(contains(job.err(), "cannot create the log folder /proc/nowhere/"));
}
