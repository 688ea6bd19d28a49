// SPDX-License-Identifier: Apache-2.0
// Launchers of one job, or of two jobs, that were started with different settings.
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>

using namespace acc::test;

namespace {

using Words = std::vector<std::string>;

Words machine(int rank, const ReservedPort& port, int num_machines, const Words& flags,
              const Words& program) {
  Words command = {ACC_BIN_DIR "/acclaunch", "--cpu",
                   "--num_machines",         std::to_string(num_machines),
                   "--num_processes",        std::to_string(num_machines),
                   "--machine_rank",         std::to_string(rank),
                   "--main_process_ip",      "127.0.0.1",
                   "--main_process_port",    port.text()};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

const Words kProgram = {"/bin/sh", "-c", "echo started; exec sleep 1000"};

void check_refused(Program& job, const std::string& why, const std::string& why_too = "") {
  CHECK(job.wait() == 2);
  CHECK_MESSAGE(contains(job.err(), why), job.err());
  CHECK_MESSAGE(contains(job.err(), why_too), job.err());
  CHECK(job.out().empty());
}

}  // namespace

TEST_CASE("disagreeing machines: each names the difference and ends with status 2") {
  const struct {
    Words flags0, flags1, program1;
    std::string said0, said1;
  } cases[] = {
      {{}, {}, {"/bin/echo"}, "with the program sh", "with the program echo"},
      {{},
       {},
       {"/bin/sh", "-c", "echo other"},
       "with the arguments -c 'echo started; exec sleep 1000'",
       "with the arguments -c 'echo other'"},
      {{"--use_deepspeed", "--zero_stage", "2"},
       {"--use_deepspeed", "--zero_stage", "3"},
       kProgram,
       "with --zero_stage 2",
       "with --zero_stage 3"},
      {{"--use_fsdp", "--fsdp_sharding_strategy", "1"},
       {"--use_fsdp", "--fsdp_sharding_strategy", "2"},
       kProgram,
       "with --fsdp_sharding_strategy FULL_SHARD",
       "with --fsdp_sharding_strategy SHARD_GRAD_OP"},
      {{"--mixed_precision", "bf16"},
       {},
       kProgram,
       "with --mixed_precision bf16",
       "with --mixed_precision no"},
      {{"--use_fsdp"}, {}, kProgram, "with the sharding mode fsdp", "with the sharding mode none"},
      {{}, {"--num_processes", "4"}, kProgram, "with --num_processes 2", "with --num_processes 4"},
      {{},
       {"--num_machines", "3", "--num_processes", "3"},
       kProgram,
       "with --num_machines 2",
       "with --num_machines 3"},
      {{},
       {"--rdzv_backend", "c10d"},
       kProgram,
       "with --rdzv_backend static",
       "with --rdzv_backend c10d"},
      {{"--num_processes", "4", "--num_local_processes", "1"},
       {"--num_processes", "4", "--num_local_processes", "2"},
       kProgram,
       "machine 0 (",
       "brings 2: 3 in all"},
  };
  for (const auto& [flags0, flags1, program1, said0, said1] : cases) {
    CAPTURE(said1);
    const ReservedPort port;
    Program machine0(machine(0, port, 2, flags0, kProgram));
    Program machine1(machine(1, port, 2, flags1, program1));
    check_refused(machine0, said0, said1);
    check_refused(machine1, said0, said1);
  }
}

TEST_CASE("disagreeing machines: a machine that joins later gets the same error") {
  const ReservedPort port;
  const std::string why = "with the program echo";
  Program machine0(machine(0, port, 3, {}, kProgram));
  Program machine1(machine(1, port, 3, {}, {"/bin/echo"}));
  check_refused(machine1, why);
  machine0.wait_for_text("machines that are still to come");
  Program machine2(machine(2, port, 3, {}, kProgram));
  check_refused(machine2, why);
  check_refused(machine0, why);
}

TEST_CASE("disagreeing machines: two machines with the same rank") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    const ReservedPort port;
    const std::string why = "--machine_rank " + std::to_string(rank) + " is claimed twice";
    const Words flags = {"--rdzv_conf", "heartbeat_timeout=3"};
    Program machine0(machine(0, port, 3, flags, kProgram));
    machine0.wait_for_text("waiting for machine rank");
    Program machine1(machine(1, port, 3, flags, kProgram));
    machine0.wait_for_text("acclaunch: ");
    machine1.wait_for_text("waiting for machine rank 2;");
    Program twin(machine(rank, port, 3, flags, kProgram));
    check_refused(twin, why);
    check_refused(machine1, why);
    check_refused(machine0, why);
  }
}

TEST_CASE("disagreeing machines: another job uses the port") {
  const ReservedPort port;
  const std::map<std::string, std::string> other = {{"PET_RDZV_ID", "other"}};
  const std::string why = "serves the job 'none' there, not the job 'other'";
  const Words flags = {"--rdzv_conf", "heartbeat_timeout=3"};
  Program job(machine(0, port, 2, flags, kProgram));
  job.wait_for_text("waiting for machine rank");
  Program machine1(machine(1, port, 2, {}, kProgram), other);
  Program machine0(machine(0, port, 2, {}, kProgram), other);
  check_refused(machine1, why);
  check_refused(machine0, why);
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
}

TEST_CASE("disagreeing machines: launches of different arguments without a run ID at one daemon") {
  const ReservedPort port;
  Program daemon({ACC_BIN_DIR "/acc-rendezvous", "--port", port.text()});
  daemon.wait_for_text("listening on");
  const auto launch = [&](const std::string& nodes, const Words& more) {
    Words command = torchrun(c10d_flags(nodes, port, {"--rdzv-conf", "last_call_timeout=1"}),
                             "echo $0 $1 on $WORLD_SIZE; exec sleep 1000");
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  // Before a round neither launch runs: the server cannot know which one is the wrong one.
  Program one(launch("2", {"--lr", "1"}));
  one.wait_for_text("waiting for machines: 1 of 2");
  Program other(launch("2", {"--lr", "2"}));
  for (Program* each : {&one, &other}) {
    check_refused(*each, "--lr 1", "--lr 2");
    CHECK(contains(each->err(), "give another job its own --rdzv_id\n"));
  }
  // A running job goes on; the newcomer is refused.
  Program running(launch("1:2", {"--lr", "1"}));
  running.wait_for_text("--lr 1 on 1");
  Program late(launch("1:2", {"--lr", "2"}));
  check_refused(late, "--lr 1", "--lr 2");
  // The same line joins.
  Program same(launch("1:2", {"--lr", "1"}));
  same.wait_for_text("--lr 1 on 2");
  running.wait_for_text("--lr 1 on 2");
  running.signal(SIGTERM);
  CHECK(running.wait() == 128 + SIGTERM);
  same.wait_for_text("--lr 1 on 1");
  same.signal(SIGTERM);
  CHECK(same.wait() == 128 + SIGTERM);
}
