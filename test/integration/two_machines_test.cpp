// SPDX-License-Identifier: Apache-2.0
// Two acclaunch processes on one host, which act as two machines.
#include "acc/base/token.hpp"
#include "support/gate.hpp"
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <set>

using namespace acc::test;

namespace {

using Flags = std::vector<std::string>;

Flags machine(int rank, const ReservedPort& port, const std::string& script, Flags more = {}) {
  Flags command = {
      ACC_BIN_DIR "/acclaunch", "--cpu",     "--num_processes",     "4",
      "--num_machines",         "2",         "--machine_rank",      std::to_string(rank),
      "--main_process_ip",      "127.0.0.1", "--main_process_port", port.text()};
  command.insert(command.end(), more.begin(), more.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return command;
}

/// Returns the failure report: the lines between two lines of '='.
std::string block_of(const Program& machine) {
  const std::string rule(72, '=');
  const std::size_t begin = machine.err().find(rule);
  REQUIRE(begin != std::string::npos);
  return machine.err().substr(begin, machine.err().rfind(rule) - begin);
}

}  // namespace

TEST_CASE("two machines: ranks are numbered over both, whichever joins first") {
  const std::string script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK";
  for (const int first : {0, 1}) {
    CAPTURE(first);
    const ReservedPort port;
    Program one(machine(first, port, script));
    one.wait_for_text("acclaunch: ");  // the notice that it waits for the other machine
    Program other(machine(1 - first, port, script));
    CHECK(one.wait() == 0);
    CHECK(other.wait() == 0);
    const std::string out0 = first == 0 ? one.out() : other.out();
    const std::string out1 = first == 1 ? one.out() : other.out();
    CHECK(contains(out0, prefix(0) + "0/4 0/2 0\n"));
    CHECK(contains(out0, prefix(1) + "1/4 1/2 0\n"));
    CHECK(contains(out1, prefix(2) + "2/4 0/2 1\n"));
    CHECK(contains(out1, prefix(3) + "3/4 1/2 1\n"));
  }
}

TEST_CASE("two machines: a failure on either ends both, with its status and its report") {
  const std::pair<int, int> cases[] = {{1, 0}, {2, 1}};  // failing rank, its machine
  for (const auto& [rank, at] : cases) {
    CAPTURE(rank);
    const std::string script =
        "[ $RANK = " + std::to_string(rank) + " ] && { echo reason >&2; exit 7; }; exec sleep 1000";
    const ReservedPort port;
    Program machine0(machine(0, port, script));
    Program machine1(machine(1, port, script));
    CHECK(machine0.wait() == 7);
    CHECK(machine1.wait() == 7);
    for (const std::string& err : {machine0.err(), machine1.err()}) {
      CHECK(
          contains(err, "the job failed: rank " + std::to_string(rank) + ": exited with code 7\n"));
      CHECK(contains(err, "    | reason\n"));
    }
    CHECK(block_of(machine0) == block_of(machine1));
    const std::string& other = at == 0 ? machine1.err() : machine0.err();
    CHECK(contains(other, "ended the job: rank " + std::to_string(rank)));
  }
}

TEST_CASE("two machines: a stop signal to one ends both") {
  for (const int stopped : {0, 1}) {
    CAPTURE(stopped);
    const ReservedPort port;
    Program machine0(machine(0, port, "echo worker-up; exec sleep 1000"));
    Program machine1(machine(1, port, "echo worker-up; exec sleep 1000"));
    machine0.wait_for_text("worker-up", 2);
    machine1.wait_for_text("worker-up", 2);
    (stopped == 0 ? machine0 : machine1).signal(SIGTERM);
    CHECK(machine0.wait() == 128 + SIGTERM);
    CHECK(machine1.wait() == 128 + SIGTERM);
  }
}

TEST_CASE("two machines: after a second stop signal no machine waits for workers") {
  for (const int asked : {0, 1}) {
    CAPTURE(asked);
    const ReservedPort port;
    const std::string script = "trap '' TERM; echo worker-up; while :; do sleep 1000; done";
    Program machine0(machine(0, port, script, {"--shutdown_timeout", "1000"}));
    Program machine1(machine(1, port, script, {"--shutdown_timeout", "1000"}));
    machine0.wait_for_text("worker-up", 2);
    machine1.wait_for_text("worker-up", 2);
    Program& first = asked == 0 ? machine0 : machine1;
    first.signal(SIGTERM);
    first.wait_for_text("SIGTERM: ending the workers");
    first.signal(SIGTERM);
    CHECK(machine0.wait() == 128 + SIGTERM);
    CHECK(machine1.wait() == 128 + SIGTERM);
  }
}

TEST_CASE("two machines: a stop signal to a machine whose workers have ended") {
  struct Case {
    const char* what;
    int exit_code;  // of the workers of machine 0
    int status;     // of the job
    bool kills;     // the stop signal counts as a second request, so it kills
  };
  // Workers that are being ended after a failure are killed at once; others may clean up first.
  for (const Case& each :
       {Case{"after success", 0, 128 + SIGTERM, false}, Case{"after a failure", 7, 7, true}}) {
    CAPTURE(each.what);
    const ReservedPort port;
    const Flags flags = {"--shutdown_timeout", "1000", "--rdzv_conf", "compare_arguments=false"};
    Gate gate;
    const std::string script =
        "echo pid=$$ end; read -r line < $GATE; exit " + std::to_string(each.exit_code);
    const std::string saves = std::string("trap 'echo asked; ") +
                              (each.kills ? "" : "echo saved; exit 0") +
                              "' TERM; echo worker-up; while :; do sleep 1000 & wait; done";
    Program machine0(machine(0, port, script, flags), {{"GATE", gate.path()}});
    Program machine1(machine(1, port, saves, flags));
    machine0.wait_for_text(" end", 2);
    machine1.wait_for_text("worker-up", 2);
    const Watched workers(machine0.out(), "pid=");
    gate.open(2);
    CHECK(workers.all_end());
    if (each.kills) {
      machine1.wait_for_text("asked", 2);
    }
    machine0.signal(SIGTERM);
    CHECK(machine0.wait() == each.status);
    CHECK(machine1.wait() == each.status);
    CHECK(contains(machine1.out(), "saved\n") == !each.kills);
  }
}

TEST_CASE("two machines: kill -9 of one acclaunch ends the other machine's workers too") {
  for (const char* restarts : {"0", "3"}) {
    for (const int killed : {0, 1}) {
      CAPTURE(restarts);
      CAPTURE(killed);
      const ReservedPort port;
      const Flags flags = {"--max_restarts", restarts};
      Program machine0(machine(0, port, "echo pid=$$ end; exec sleep 1000", flags));
      Program machine1(machine(1, port, "echo pid=$$ end; exec sleep 1000", flags));
      machine0.wait_for_text(" end", 2);
      machine1.wait_for_text(" end", 2);
      const Watched workers(machine0.out() + machine1.out(), "pid=");
      Program& other = killed == 0 ? machine1 : machine0;
      (killed == 0 ? machine0 : machine1).signal(SIGKILL);
      CHECK(other.wait() == 1);
      CHECK(workers.all_end());
      CHECK(contains(other.err(), "machine " + std::to_string(killed)));
    }
  }
}

TEST_CASE("two machines: a machine that does not join within the timeout is named") {
  const ReservedPort port;
  for (const int alone : {0, 1}) {
    CAPTURE(alone);
    Program job(machine(alone, port, "echo started", {"--rdzv_conf", "timeout=1"}));
    CHECK(job.wait() == 124);
    CHECK(job.out().empty());
    CHECK(contains(job.err(), alone == 0
                                  ? "timeout: machine rank 1 did not join within 1 s"
                                  : "from the rendezvous at 127.0.0.1:" + port.text() + ": "));
  }
}

TEST_CASE("two machines: a stop signal while waiting for the others") {
  const ReservedPort port;
  for (const int alone : {0, 1}) {
    Program job(machine(alone, port, "echo started"));
    job.wait_for_text("acclaunch: ");
    job.signal(SIGINT);
    CHECK(job.wait() == 128 + SIGINT);
  }
}

TEST_CASE("two machines: disagreement about the job is an error on both") {
  const ReservedPort port;
  Program machine0(machine(0, port, "echo started"));
  Program machine1(machine(1, port, "echo started", {"--num_processes", "2"}));
  CHECK(machine0.wait() == 2);
  CHECK(machine1.wait() == 2);
  CHECK(machine0.out() + machine1.out() == "");
}

TEST_CASE("two machines: c10d assigns the ranks, and workers have their own port") {
  const ReservedPort port;
  TwoMachines machines(Way::c10d, port, {},
                       "echo $RANK/$WORLD_SIZE group $GROUP_RANK at $MASTER_ADDR:$MASTER_PORT end; "
                       "exec sleep 1000");
  machines[0].wait_for_text(" end", 2);
  machines[1].wait_for_text(" end", 2);
  const std::string out = machines[0].out() + machines[1].out();
  const std::size_t at = out.find(" at 127.0.0.1:");
  REQUIRE(at != std::string::npos);
  const std::string address = out.substr(at, out.find(" end") - at);
  CHECK(address != " at 127.0.0.1:" + port.text());
  for (const char* who : {"0/4 group 0", "1/4 group 0", "2/4 group 1", "3/4 group 1"}) {
    CHECK(contains(out, std::string("] ") + who + address + " end\n"));
  }
  machines[0].signal(SIGTERM);
  CHECK(machines[0].wait() == 128 + SIGTERM);
  CHECK(machines[1].wait() == 128 + SIGTERM);
}

TEST_CASE("the workers of all machines share one secret per round") {
  const std::map<std::string, std::string> outer = {{"ACC_JOB_SECRET", "an outer job's"}};
  std::set<std::string> secrets;
  for (const Way way : {Way::fixed, Way::c10d, Way::fixed}) {
    CAPTURE(way_name(way));
    const ReservedPort port;
    TwoMachines machines(way, port, {}, "echo secret=$ACC_JOB_SECRET.", outer);
    CHECK(machines[0].wait() == 0);
    CHECK(machines[1].wait() == 0);
    const std::string out = machines[0].out() + machines[1].out();
    const std::size_t at = out.find("secret=");
    REQUIRE(at != std::string::npos);
    const std::string line = out.substr(at, out.find('.', at) - at);
    CHECK(acc::is_token(line.substr(std::string("secret=").size())));
    for (const int rank : {0, 1, 2, 3}) {
      CHECK(contains(out, prefix(rank) + line + ".\n"));
    }
    secrets.insert(line);
  }
  CHECK(secrets.size() == 3);
  Program alone(torchrun({"--nproc-per-node", "2"}, "echo secret=$ACC_JOB_SECRET."), outer);
  CHECK(alone.wait() == 0);
  CHECK(acc::is_token(alone.out().substr(alone.out().find('=') + 1, 32)));
  Program plain({ACC_BIN_DIR "/acclaunch", "--cpu", "/bin/sh", "-c", "echo $ACC_JOB_SECRET"},
                outer);
  CHECK(plain.wait() == 0);
  CHECK(plain.out() == "\n");
}

TEST_CASE("two machines: one job may end at a rendezvous host while another one continues") {
  const ReservedPort port;
  const auto job = [&](const std::string& id, const std::string& script) {
    return torchrun({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                     "localhost:" + port.text(), "--rdzv-id", id},
                    script);
  };
  Program host(job("one", "echo worker-up; exec sleep 1000"));  // hosts the rendezvous
  host.wait_for_text("waiting for machines");
  const std::string script = "echo two-up; trap 'exit 5' USR1; while :; do sleep 1000 & wait; done";
  Program third(job("two", script));
  Program fourth(job("two", script));
  Program other(job("one", "echo worker-up; exec sleep 1000"));
  host.wait_for_text("worker-up");
  third.wait_for_text("two-up");
  fourth.wait_for_text("two-up");
  host.signal(SIGTERM);
  CHECK(other.wait() == 128 + SIGTERM);
  host.wait_for_text("other jobs use the rendezvous on this machine: serving them until they end");
  fourth.signal(SIGUSR1);
  CHECK(third.wait() == 5);
  CHECK(fourth.wait() == 5);
  CHECK(host.wait() == 128 + SIGTERM);
}

TEST_CASE(
    "two machines: the minimum starts after the last call, and a late machine starts a new round") {
  const ReservedPort port;
  const auto machine = [&] {
    return torchrun(c10d_flags("1:3", port, {"--rdzv-conf", "last_call_timeout=1"}),
                    "echo world $WORLD_SIZE after $TORCHELASTIC_RESTART_COUNT end; sleep 1000");
  };
  Program first(machine());
  first.wait_for_text("world 1 after 0 end");
  Program late(machine());
  first.wait_for_text("world 2 after 0 end");
  late.wait_for_text("world 2 after 0 end");
  CHECK(contains(first.err(),
                 " has joined: the next round has 2 machines; starting all workers again\n"));
  CHECK(contains(first.err(), "acclaunch: round 1: 2 machines, 2 workers; this is machine "));
  late.signal(SIGTERM);  // only this machine leaves
  CHECK(late.wait() == 128 + SIGTERM);
  first.wait_for_text("world 1 after 0 end", 2);
  first.signal(SIGTERM);  // hosts the rendezvous, and is the last machine
  CHECK(first.wait() == 128 + SIGTERM);
}

TEST_CASE("two machines: a machine that stops waiting is replaced by another one") {
  const ReservedPort port;
  const auto machine = [&](const std::string& script) {
    return torchrun(c10d_flags("3", port), script);
  };
  const std::string script = "echo $RANK of $WORLD_SIZE";
  Program host(machine(script));
  host.wait_for_text("waiting for machines: 1 of 3");
  Program gone(machine(script));
  gone.wait_for_text("waiting for machines: 2 of 3");
  gone.signal(SIGINT);
  CHECK(gone.wait() == 128 + SIGINT);
  Program second(machine(script));
  second.wait_for_text("waiting for machines: 2 of 3");
  Program third(machine(script));
  CHECK(host.wait() == 0);
  CHECK(second.wait() == 0);
  CHECK(third.wait() == 0);
  CHECK(third.out() == prefix(2) + "2 of 3\n");
}

TEST_CASE("two machines: a foreign server at the rendezvous port is named") {
  const ReservedPort held;
  held.listen();
  Program job(torchrun(c10d_flags("2", held, {"--rdzv-conf", "join_timeout=3"}), "echo started"));
  CHECK(job.wait() == 2);
  CHECK(contains(job.err(), "from the rendezvous at 127.0.0.1:" + held.text()));
  CHECK(contains(job.err(), "launch_test (pid " + std::to_string(::getpid()) +
                                ") listens there; choose another port"));
  CHECK(job.out().empty());
}

TEST_CASE("two machines: each may have a different number of workers") {
  const ReservedPort port;
  const auto machine = [&](const std::string& rank, const std::string& count) {
    return torchrun({"--nnodes", "2", "--nproc-per-node", count, "--node-rank", rank,
                     "--master-addr", "127.0.0.1", "--master-port", port.text()},
                    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE");
  };
  Program machine0(machine("0", "1"));
  Program machine1(machine("1", "3"));
  CHECK(machine0.wait() == 0);
  CHECK(machine1.wait() == 0);
  CHECK(machine0.out() == prefix(0) + "0/4 0/1\n");
  CHECK(contains(machine1.out(), prefix(1) + "1/4 0/3\n"));
  CHECK(contains(machine1.out(), prefix(3) + "3/4 2/3\n"));
}
