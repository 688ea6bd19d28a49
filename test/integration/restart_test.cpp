// SPDX-License-Identifier: Apache-2.0
// Restarts after failures of workers, on one machine and on several.
#include "support/gate.hpp"
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <fstream>

using namespace acc::test;

namespace {

constexpr const char* kAttempt = "attempt=$TORCHELASTIC_RESTART_COUNT";

}  // namespace

TEST_CASE("restart: all workers start again until the job succeeds") {
  Program job(torchrun({"--nproc-per-node", "2", "--max-restarts", "3"}, R"(
    echo "$RANK in $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"
    [ -d "${TORCHELASTIC_ERROR_FILE%/*}" ] && echo "$TORCHELASTIC_ERROR_FILE"
    [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && { echo why >&2; exit 9; }
    [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exec sleep 1000
    exit 0)"));
  CHECK(job.wait() == 0);
  for (const char* attempt : {"0", "1", "2"}) {
    CHECK(contains(job.out(), "[1] 1 in " + std::string(attempt) + " of 3\n"));
    CHECK(contains(job.out(), "/attempt_" + std::string(attempt) + ".1.error.json\n"));
  }
  CHECK(contains(job.out(), "[0] 0 in 2 of 3\n"));
  CHECK(contains(job.err(), "attempt 0 failed: rank 1: exited with code 9\n"));
  CHECK(contains(job.err(), "attempt 1 failed: rank 1: exited with code 9\n"));
  CHECK(contains(job.err(), "  attempt   1, of 0 to 3\n"));
  CHECK(contains(job.err(), "    | why\n"));
  CHECK(contains(job.err(), "acclaunch: restart 2 of 3\n"));
  CHECK_FALSE(contains(job.err(), "the job failed"));
}

TEST_CASE("restart: when no restart is left the job fails with the worker's status") {
  Program job(torchrun({"--nproc-per-node", "2", "--max-restarts", "1"},
                       "[ $RANK = 0 ] && exit 5; exec sleep 1000"));
  CHECK(job.wait() == 5);
  CHECK(contains(job.err(), "attempt 0 failed: rank 0: exited with code 5\n"));
  CHECK(contains(job.err(), "the job failed: rank 0: exited with code 5\n"));
}

TEST_CASE("restart: child processes of the previous attempt have ended") {
  const Gate fifo;
  Program job(torchrun({"--max-restarts", "1"}, R"(
    [ $TORCHELASTIC_RESTART_COUNT = 1 ] && { echo again; exec sleep 1000; }
    setsid sh -c 'echo pid=$$ end; echo go > $FIFO; exec sleep 1000' &
    read -r line < $FIFO; exit 3)"),
              {{"FIFO", fifo.path()}});
  job.wait_for_text("again");
  const Watched children(job.out(), "pid=");
  CHECK(children.size() == 1);
  CHECK(children.all_end());
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
}

TEST_CASE("restart: a stop signal does not cause a restart") {
  Program job(torchrun({"--nproc-per-node", "2", "--max-restarts", "3"},
                       "echo worker-up; exec sleep 1000"));
  job.wait_for_text("worker-up", 2);
  job.signal(SIGINT);
  CHECK(job.wait() == 128 + SIGINT);
  CHECK_FALSE(contains(job.err(), "restart"));
}

TEST_CASE("restart: a stop signal while workers end for a restart stops the job") {
  const Gate fifo;
  Program job(torchrun({"--nproc-per-node", "2", "--max-restarts", "3"}, R"(
    [ $RANK = 0 ] && { read -r line < $FIFO; exit 9; }
    trap 'echo stopping' TERM
    echo ready > $FIFO
    while :; do sleep 1000 & wait; done)"),
              {{"FIFO", fifo.path()}});
  job.wait_for_text("stopping");
  job.signal(SIGINT);  // the second stop signal kills at once
  CHECK(job.wait() == 9);
  CHECK_FALSE(contains(job.err(), "restart 1"));
}

TEST_CASE("restart: the store drops the keys of the failed attempt and keeps its port") {
  TemporaryFolder folder;
  Program job(torchrun({"--max-restarts", "1"},
                       "echo $MASTER_PORT > $FOLDER/port_$TORCHELASTIC_RESTART_COUNT; " +
                           std::string(ACC_BIN_DIR) + "/store_key attempt"),
              {{"FOLDER", folder.path().string()}});
  CHECK(job.wait() == 0);
  std::string first;
  std::string second;
  std::ifstream(folder.path() / "port_0") >> first;
  std::ifstream(folder.path() / "port_1") >> second;
  CHECK(first == second);
  CHECK(contains(job.out(), "0 was the first\n1 was the first\n"));
}

TEST_CASE("restart: a failure on either machine restarts both") {
  for (const Way way : {Way::fixed, Way::c10d}) {
    for (const char* rank : {"0", "3"}) {
      CAPTURE(way_name(way));
      CAPTURE(rank);
      const ReservedPort port;
      const std::string script = std::string("[ $RANK = ") + rank +
                                 " ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7\n"
                                 "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 1000\n"
                                 "echo $RANK of $WORLD_SIZE, " +
                                 kAttempt;
      TwoMachines machines(way, port, {"--max-restarts", "1"}, script);
      CHECK(machines[0].wait() == 0);
      CHECK(machines[1].wait() == 0);
      const std::string out = machines[0].out() + machines[1].out();
      for (const char* each : {"0", "1", "2", "3"}) {
        CHECK(contains(out, std::string("] ") + each + " of 4, attempt=1\n"));
      }
      CHECK_FALSE(contains(out, "attempt=0"));
    }
  }
}

TEST_CASE("restart: machines whose workers have already succeeded start again too") {
  for (const Way way : {Way::fixed, Way::c10d}) {
    CAPTURE(way_name(way));
    const Gate fifo;
    const ReservedPort port;
    TwoMachines machines(way, port, {"--max-restarts", "1"},
                         "echo $RANK in $TORCHELASTIC_RESTART_COUNT; "
                         "[ $RANK$TORCHELASTIC_RESTART_COUNT = 30 ] && { read -r x < $FIFO; "
                         "exit 1; }; exit 0",
                         {{"FIFO", fifo.path()}});
    for (int i = 0; i < 2; ++i) {
      machines[i].wait_for_text(" in 0", 2);
    }
    std::ofstream(fifo.path()) << "fail\n";
    CHECK(machines[0].wait() == 0);
    CHECK(machines[1].wait() == 0);
    CHECK(contains(machines[0].out() + machines[1].out(), "] 0 in 1\n"));
    CHECK(contains(machines[0].out() + machines[1].out(), "] 3 in 1\n"));
  }
}

TEST_CASE("restart: the budget is the job's, not the machine's") {
  for (const Way way : {Way::fixed, Way::c10d}) {
    CAPTURE(way_name(way));
    const ReservedPort port;
    // Machine 0 fails first, then machine 1; then no restart is left.
    TwoMachines machines(way, port, {"--max-restarts", "1"},
                         "[ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 4\n"
                         "[ $RANK = 3 ] && [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 6\n"
                         "exec sleep 1000");
    CHECK(machines[0].wait() == 6);
    CHECK(machines[1].wait() == 6);
  }
}

TEST_CASE("restart: a launcher that cannot continue ends the job on the other machine too") {
  for (const int at_fault : {0, 1}) {
    CAPTURE(at_fault);
    const ReservedPort port;
    // The launcher gets no descriptors for the workers of the next attempt.
    const std::string script = "[ $RANK = " + std::to_string(2 * at_fault + 1) +
                               " ] && { prlimit --nofile=8 --pid $PPID; exit 1; }; exec sleep 1000";
    TwoMachines machines(Way::fixed, port, {"--max-restarts", "2"}, script);
    CHECK(machines[0].wait() == 1);
    CHECK(machines[1].wait() == 1);
    CHECK(contains(machines[at_fault].err(), "Too many open files"));
    CHECK(contains(machines[1 - at_fault].err(), "Too many open files"));
  }
}

TEST_CASE("restart: a machine that disappears ends the job") {
  const std::pair<Way, const char*> cases[] = {{Way::fixed, "3"}, {Way::c10d, "0"}};
  for (const auto& [way, restarts] : cases) {
    for (const int killed : {0, 1}) {
      CAPTURE(way_name(way));
      CAPTURE(killed);
      const ReservedPort port;
      TwoMachines machines(way, port, {"--max-restarts", restarts},
                           "echo pid=$$ end; exec sleep 1000");
      machines[0].wait_for_text(" end", 2);
      machines[1].wait_for_text(" end", 2);
      const Watched workers(machines[0].out() + machines[1].out(), "pid=");
      ::kill(supervisor_of(machines[killed]), SIGKILL);
      CHECK(machines[killed].wait() == 128 + SIGKILL);
      CHECK(machines[1 - killed].wait() == 1);
      CHECK(contains(machines[1 - killed].err(), "the connection to "));
      CHECK(workers.all_end());
    }
  }
}

TEST_CASE("restart: c10d waits for another machine to replace one that disappeared") {
  const ReservedPort port;
  const auto machine = [&] {
    return torchrun(c10d_flags("2", port, {"--max-restarts", "1"}),
                    "echo $RANK in $TORCHELASTIC_RESTART_COUNT end; "
                    "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000");
  };
  Program host(machine());
  host.wait_for_text("waiting for machines");
  Program gone(machine());
  host.wait_for_text(" in 0 end");
  gone.wait_for_text(" in 0 end");
  ::kill(supervisor_of(gone), SIGKILL);
  CHECK(gone.wait() == 128 + SIGKILL);
  host.wait_for_text("waiting for machines", 2);
  Program other(machine());
  CHECK(host.wait() == 0);
  CHECK(other.wait() == 0);
  CHECK(contains(host.out() + other.out(), "1 in 1 end\n"));
  CHECK(contains(host.err(), "acclaunch: restart 1 of 1\n"));
}
