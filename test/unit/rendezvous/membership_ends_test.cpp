// SPDX-License-Identifier: Apache-2.0
#include "rounds_fixture.hpp"

#include <algorithm>

namespace acc::rendezvous::rounds {
namespace {

using test::Elastic;
using test::Fixture;
using test::Ids;
using Cause = AttemptEnd::Cause;
using Next = RoundResult::Next;
using Why = Dropped::Why;
using namespace std::chrono_literals;

// Lost machines.

TEST_CASE_FIXTURE(Elastic, "a machine that is silent for the heartbeat timeout is lost") {
  run_few({1, 2, 3});
  world.wait(4900ms, {1, 3});
  check_no_more({1, 2, 3});
  world.wait(100ms, {1, 3});
  CHECK(world.heard<Dropped>(2) ==
        Dropped{Why::lost, "the server received no heartbeat from it for 5 s"});
  CHECK(all_heard<Ends>({1, 3}).end.reason ==
        "machine 1 (host2) is lost: no heartbeat from it for 5 s");
  report({1, 3});
  rejoin({1, 3});
  formed({1, 3});
}

TEST_CASE_FIXTURE(Elastic, "failures caused by the loss of a machine do not cancel the restart") {
  run_few({1, 2, 3});
  world.lose(2);
  CHECK(all_heard<Ends>({1, 3}).end.restarts);
  world.say(1, End{{.exit_status = 9, .restarts = true, .reason = "rank 0 lost its peer"}});
  report({1, 3}, true);
  CHECK(all_heard<Settled>({1, 3}).round_result.next == Next::next_round);
  world.say(3, End{{.exit_status = 9, .restarts = true, .reason = "late"}});
  rejoin({1, 3});
  CHECK(formed({1, 3}).restart_count == 0);
}

TEST_CASE_FIXTURE(Elastic, "too few remaining machines wait for others") {
  run_few({1, 2});
  world.say(2, Leave{});
  CHECK(world.heard<Ends>(1).end.reason == "machine 1 (host2) is lost: its launcher has ended");
  report({1});
  rejoin({1});
  world.wait(40s, {1});
  enter({5});
  world.wait(29s, {1, 5});
  world.forget_what_was_heard();
  world.wait(1s, {1, 5});
  CHECK(formed({1, 5}).restart_count == 0);
}

TEST_CASE_FIXTURE(Fixture,
                  "a lost machine without a replacement uses up a restart, then ends the job") {
  terms.max_restarts = 1;
  run({1, 2});
  world.lose(2);
  CHECK(world.heard<Ends>(1).end.restarts);
  report({1});
  rejoin({1});
  world.forget_what_was_heard();
  enter({3});
  CHECK(formed({1, 3}).restart_count == 1);
  world.lose(3);
  CHECK(world.heard<Ends>(1).end ==
        AttemptEnd{1, "host3", 1, false, Cause::other,
                   "the connection to machine 1 (host3) is lost: its connection has ended"});
  report({1});
  CHECK(world.heard<Settled>(1).round_result.next == Next::finished);
}

TEST_CASE_FIXTURE(Elastic, "the report of a lost machine is not awaited") {
  run_few({1, 2, 3});
  world.say(1, End{{.restarts = true}});
  CHECK_FALSE(all_heard<Ends>({1, 2}).end.restarts);
  world.lose(3);  // the cause of the failed workers on other machines
  const AttemptEnd loss{
      2,    "host3",           1,
      true, Cause::membership, "machine 2 (host3) is lost: its connection has ended"};
  CHECK(all_heard<Ends>({1, 2}).end == loss);
  report({1, 2}, true);
  const auto round_result = all_heard<Settled>({1, 2}).round_result;
  CHECK(round_result.end == loss);
  CHECK(round_result.next == Next::next_round);
  CHECK(round_result.machines == std::vector<ReportedMachine>{{0, "host1", "report of 1"},
                                                              {1, "host2", "report of 2"},
                                                              {2, "host3", ""}});
}

TEST_CASE_FIXTURE(Elastic, "a machine whose workers have succeeded may leave, others may not") {
  run_few({1, 2, 3});
  report({1, 2});
  world.lose(1);
  check_no_more({2, 3});
  SUBCASE("the rest succeeds") {
    report({3});
    CHECK(all_heard<Settled>({2, 3}).round_result == RoundResult{});
  }
  SUBCASE("another one is lost") {
    world.lose(3);
    CHECK(world.heard<Ends>(2).end.cause == Cause::membership);
    CHECK(world.heard<Settled>(2).round_result.next == Next::next_round);
  }
}

TEST_CASE_FIXTURE(Elastic, "a server that was suspended does not drop agents as silent") {
  run_few({1, 2});
  world.stall(3h);
  check_no_more({1, 2});
  world.wait(4s);
  check_no_more({1, 2});
  world.wait(1s, {1});
  CHECK(world.heard<Dropped>(2).why == Why::lost);
}

// Ends of rounds.

TEST_CASE_FIXTURE(Fixture, "the first end is the end on all machines") {
  run({1, 2});
  world.say(2, End{{7, "elsewhere", 137, true, Cause::worker, "rank 3 on host2\nwas killed"}});
  world.say(1, End{{0, "", 1, true, Cause::worker, "rank 0 lost its peer"}});
  const AttemptEnd end{1, "host2", 137, false, Cause::worker, "rank 3 on host2 was killed"};
  CHECK(all_heard<Ends>({1, 2}).end == end);
  report({1, 2}, true);
  const auto round_result = all_heard<Settled>({1, 2}).round_result;
  CHECK(round_result.end == end);
  CHECK(round_result.machines.size() == 2);
  check_no_more({1, 2});
}

TEST_CASE_FIXTURE(Fixture, "failed workers are restarted while restarts are left") {
  terms.max_restarts = 2;
  run({1, 2});
  for (int restarts = 0; restarts < 3; ++restarts) {
    world.say(1, End{{.exit_status = 9, .restarts = true, .reason = "rank 0 failed"}});
    CHECK(all_heard<Ends>({1, 2}).end.restarts == (restarts < 2));
    report({1, 2}, true);
    CHECK(all_heard<Settled>({1, 2}).round_result.next ==
          (restarts < 2 ? Next::next_round : Next::finished));
    if (restarts < 2) {
      rejoin({1, 2});
      const Round round = formed({1, 2});
      CHECK(round.round == restarts + 1);
      CHECK(round.restart_count == restarts + 1);
    }
  }
}

TEST_CASE_FIXTURE(Fixture, "only failures of workers cause a restart") {
  terms.max_restarts = 1;
  for (const Cause cause : {Cause::stop, Cause::other, Cause::membership, Cause::join}) {
    run({1, 2});
    world.say(1, End{{.restarts = true, .cause = cause}});
    CHECK_FALSE(all_heard<Ends>({1, 2}).end.restarts);
    report({1, 2});
    all_heard<Settled>({1, 2});
    world.lose(1);
    world.lose(2);
  }
}

TEST_CASE_FIXTURE(Fixture, "a report of failure ends the attempt by itself") {
  run({1, 2});
  report({2}, true);
  CHECK(all_heard<Ends>({1, 2}).end ==
        AttemptEnd{1, "host2", 1, false, Cause::worker, "the workers of machine 1 (host2) failed"});
  report({1});
  CHECK(all_heard<Settled>({1, 2}).round_result.machines.size() == 2);
}

TEST_CASE_FIXTURE(Fixture, "the end of the job cancels a planned restart") {
  terms.max_restarts = 1;
  run({1, 2});
  const AttemptEnd stop{1, "host2", 143, false, Cause::stop, "stopped by SIGTERM"};
  world.say(1, End{{.exit_status = 9, .restarts = true, .reason = "rank 0 failed"}});
  CHECK(all_heard<Ends>({1, 2}).end.restarts);
  SUBCASE("while workers end") {
    report({2}, true);
    world.say(2, End{stop});
    const auto end = all_heard<Ends>({1, 2}).end;  // the first reason is kept
    CHECK(end.reason == "rank 0 failed");
    CHECK_FALSE(end.restarts);
    report({1}, true);
    const auto round_result = all_heard<Settled>({1, 2}).round_result;
    CHECK(round_result.end == end);
    CHECK(round_result.next == Next::finished);
  }
  SUBCASE("while machines join again") {
    report({1, 2}, true);
    CHECK(all_heard<Settled>({1, 2}).round_result.next == Next::next_round);
    rejoin({1});
    world.heard<Waiting>(1);
    world.say(2, End{stop});
    CHECK(all_heard<Settled>({1, 2}).round_result == RoundResult{stop, {}, Next::finished});
    rejoin({2});  // crossed the cancellation
    world.say(1, End{stop});
    world.say(1, ForceStop{});
    check_no_more({1, 2});
  }
}

TEST_CASE_FIXTURE(Elastic, "a stopped machine leaves the job, and the others continue") {
  run_few({1, 2, 3});
  const AttemptEnd stop{1, "host2", 143, false, Cause::stop, "stopped by SIGTERM"};
  world.say(2, End{stop});
  CHECK(world.heard<Ends>(2).end == stop);
  CHECK(all_heard<Ends>({1, 3}).end ==
        AttemptEnd{1, "host2", 143, true, Cause::membership,
                   "machine 1 (host2) has left: stopped by SIGTERM"});
  report({1, 3});
  check_no_more({1, 3});
  report({2});
  CHECK(world.heard<Settled>(2).round_result ==
        RoundResult{stop, {{1, "host2", "report of 2"}}, Next::finished});
  CHECK(all_heard<Settled>({1, 3}).round_result.next == Next::next_round);
  rejoin({1, 3});
  formed({1, 3});
  world.say(2, End{stop});
  check_no_more({1, 2, 3});
  world.lose(2);
  CHECK(world.shown_hosts() == std::vector<std::string>{"host1", "host3"});
  world.say(3, End{stop});  // fewer than the minimum would be left
  CHECK(all_heard<Ends>({1, 3}).end.cause == Cause::stop);
  report({1, 3});
  CHECK(all_heard<Settled>({1, 3}).round_result.next == Next::finished);
}

TEST_CASE_FIXTURE(Fixture, "a force stop is sent to the other machines, once") {
  terms.max_restarts = 1;
  run({1, 2});
  enter({3});
  world.forget_what_was_heard();
  world.say(1, ForceStop{});
  world.heard<KillWorkers>(2);
  world.say(2, ForceStop{});
  world.say(3, ForceStop{});
  check_no_more({1, 2, 3});
  world.say(1, End{{.exit_status = 9, .restarts = true}});
  report({1, 2});
  rejoin({1, 2});
  formed({1, 2});
  world.say(2, ForceStop{});
  world.heard<KillWorkers>(1);
  check_no_more({1, 2});
}

TEST_CASE_FIXTURE(Fixture, "machines that do not report in time end the job instead of a restart") {
  terms.max_restarts = 1;
  run({1, 2});
  world.say(1, End{{.exit_status = 9, .restarts = true}});
  report({1});
  CHECK(all_heard<Ends>({1, 2}).end.restarts);
  world.wait(94s, {1, 2});
  check_no_more({1, 2});
  world.wait(1s, {1, 2});
  const auto round_result = all_heard<Settled>({1, 2}).round_result;
  CHECK(round_result.end ==
        AttemptEnd{1, "host2", 1, false, Cause::other,
                   "the workers of machine 1 (host2) did not stop in time for the restart"});
  CHECK(round_result.machines ==
        std::vector<ReportedMachine>{{0, "host1", "report of 1"}, {1, "host2", ""}});
  report({2});
  check_no_more({1, 2});
}

TEST_CASE_FIXTURE(Fixture, "if not all reports fit, those of failures are sent") {
  terms = {.num_machines = 2000, .min_machines = 2000};
  Ids agents(2000);
  for (std::size_t i = 0; i < agents.size(); ++i) {
    agents[i] = i;
  }
  run(agents);
  for (const AgentId agent : agents) {
    world.say(agent, Report{agent % 100 == 99, std::string(4000, 'x')});
  }
  world.heard<Ends>(0);
  const auto machines = world.heard<Settled>(0).round_result.machines;
  std::size_t bytes = 0;
  std::size_t failed = 0;
  for (const ReportedMachine& word : machines) {
    bytes += word.report.size();
    failed += word.report.empty() ? 0 : 1;
  }
  CHECK(bytes <= 64 << 10);
  CHECK(failed == 16);
  CHECK(std::ranges::count(machines, 99, &ReportedMachine::machine_rank) == 1);
}

// Jobs.

TEST_CASE_FIXTURE(Elastic, "a finished elastic job refuses late machines for a while") {
  run_few({1, 2});
  report({1, 2});
  world.lose(1);
  world.lose(2);
  world.wait(7s);
  enter({3});
  CHECK(world.heard<Dropped>(3) ==
        Dropped{Why::over,
                "the job 'run' has ended 7 s ago; start a new job with another --rdzv_id"});
  world.wait(23s);
  CHECK(world.num_jobs() == 0);
  CHECK_FALSE(world.has_deadline());
  enter({4});
  world.heard<Welcome>(4);
}

TEST_CASE_FIXTURE(Elastic, "only the most recent finished jobs are remembered, at most for a day") {
  constexpr int kNumJobs = 1030;
  Enter enter = introduction(0);
  enter.terms = {.num_machines = 2, .min_machines = 1};
  enter.times.last_call = 0ms;
  enter.times.close = std::chrono::years(9);
  const auto enter_job = [&](AgentId agent, int job) {
    enter.run_id = "run" + std::to_string(job);
    world.say(agent, enter);
  };
  for (int job = 0; job < kNumJobs; ++job) {
    const auto agent = static_cast<AgentId>(job);
    enter_job(agent, job);
    world.say(agent, Report{});
    world.lose(agent);
  }
  CHECK(world.num_jobs() == 1024);
  world.forget_what_was_heard();
  enter_job(kNumJobs, 6);
  CHECK(world.heard<Dropped>(kNumJobs).why == Why::over);
  enter_job(kNumJobs + 1, 5);
  world.heard<Welcome>(kNumJobs + 1);
  world.say(kNumJobs + 1, Leave{});
  world.stall(std::chrono::days(1));
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Fixture, "the next job may have the same run id while the last one is closing") {
  run({1, 2});
  report({1, 2});
  all_heard<Settled>({1, 2});
  enter({3, 4});
  CHECK(formed({3, 4}).round == 0);
  CHECK(world.num_jobs() == 2);
  world.say(1, Beat{});
  world.lose(1);
  world.lose(2);
  CHECK(world.num_jobs() == 1);
  report({3, 4});
  CHECK(all_heard<Settled>({3, 4}).round_result == RoundResult{});
}

TEST_CASE_FIXTURE(Fixture, "a silent agent of a finished job is dropped") {
  run({1, 2});
  report({1, 2});
  all_heard<Settled>({1, 2});
  world.lose(1);
  world.wait(5s);
  CHECK(world.heard<Dropped>(2).why == Why::lost);
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Fixture, "jobs are independent of each other") {
  for (AgentId agent = 0; agent < 6; ++agent) {
    Enter enter = introduction(agent);
    enter.run_id = "run" + std::to_string(agent / 2);
    world.say(agent, enter);
  }
  CHECK(world.num_jobs() == 3);
  formed({0, 1});
  formed({2, 3});
  formed({4, 5});
  world.lose(2);
  CHECK_FALSE(world.heard<Ends>(3).end.restarts);
  check_no_more({0, 1, 4, 5});
}

}  // namespace
}  // namespace acc::rendezvous::rounds
