// SPDX-License-Identifier: Apache-2.0
#include "rounds_fixture.hpp"

#include <ctime>
#include <numeric>

namespace acc::rendezvous::rounds {
namespace {

using acc::test::contains;
using test::Elastic;
using test::Fixture;
using test::Ids;
using Cause = AttemptEnd::Cause;
using Next = RoundResult::Next;
using Why = Dropped::Why;
using namespace std::chrono_literals;

// Conditions for a round.

TEST_CASE_FIXTURE(Elastic, "the minimum of machines forms a round after the last call") {
  enter({1, 2});
  world.wait(29s, {1, 2});
  enter({3});
  world.wait(900ms, {1, 2, 3});
  CHECK(world.heard<Welcome>(3) == Welcome{1s, 5s});
  CHECK(world.heard<Waiting>(3).text == "waiting for machines: 3 of 2 to 4 are here");
  check_no_more({3});
  world.wait(100ms, {1, 2, 3});
  formed({1, 2, 3});
}

TEST_CASE_FIXTURE(Elastic, "a round with all machines does not wait for the last call") {
  enter({1, 2, 3, 4});
  formed({1, 2, 3, 4});
}

TEST_CASE_FIXTURE(Elastic, "the last call starts again after too few machines were present") {
  enter({1, 2});
  world.wait(20s, {1, 2});
  world.lose(2);
  world.wait(5s, {1});
  enter({3});
  world.wait(29s, {1, 3});
  world.forget_what_was_heard();
  world.wait(1s, {1, 3});
  formed({1, 3});
}

TEST_CASE_FIXTURE(Elastic, "each machine waits for its own join timeout") {
  enter({1});
  world.forget_what_was_heard();
  world.wait(59s, {1});
  world.forget_what_was_heard();
  world.wait(1s, {1});
  CHECK(world.heard<Dropped>(1) ==
        Dropped{Why::timeout,
                "timeout: only 1 of 2 to 4 machines joined within 60 s: start acclaunch on the "
                "others with the same flags"});
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Elastic, "the join timeout does not end a last call") {
  times.join = 10s;
  enter({1, 2});
  world.wait(30s, {1, 2});
  formed({1, 2});
}

TEST_CASE_FIXTURE(Elastic, "the join timeout starts again when too few machines are present") {
  times.join = 3s;
  times.heartbeat = 60s;
  enter({1, 2});
  world.wait(2s);
  world.lose(2);
  world.forget_what_was_heard();
  world.wait(2900ms);
  check_no_more({1});
  world.wait(100ms);
  CHECK(contains(world.heard<Dropped>(1).reason, "1 of 2 to 4 machines joined within 3 s"));
}

TEST_CASE_FIXTURE(Elastic, "deadlines are met without heartbeats") {
  times.heartbeat = 60s;
  times.last_call = 3s;
  times.settle = 7s;
  enter({1, 2});
  world.wait(3s);
  formed({1, 2});
  world.say(1, End{{.cause = Cause::other}});
  all_heard<Ends>({1, 2});
  world.wait(7s);
  CHECK(all_heard<Settled>({1, 2}).round_result.next == Next::finished);
}

TEST_CASE_FIXTURE(Elastic,
                  "the next round waits for the machines of the last one, not for a last call") {
  run_few({1, 2, 3});
  enter({4});
  CHECK(world.heard<Ends>(1).end ==
        AttemptEnd{-1, "host4", 0, true, Cause::join,
                   "machine host4 has joined: the next round has 4 machines"});
  report({1, 2, 3});
  rejoin({1, 2});
  world.lose(4);
  world.wait(5s, {1, 2, 3});
  world.forget_what_was_heard();
  rejoin({3});
  CHECK(formed({1, 2, 3}).round == 1);
}

TEST_CASE_FIXTURE(Elastic,
                  "a machine that does not rejoin keeps its place until its join timeout") {
  terms.max_restarts = 1;
  run_few({1, 2, 3});
  world.say(1, End{{.restarts = true}});
  report({1, 2, 3});
  world.heard<Ends>(1);
  world.heard<Ends>(2);
  world.heard<Ends>(3);
  CHECK(all_heard<Settled>({1, 2, 3}).round_result.next == Next::next_round);
  rejoin({1, 2});
  world.wait(59s, {1, 2, 3});
  world.forget_what_was_heard();
  world.wait(1s, {1, 2, 3});
  CHECK(world.heard<Dropped>(3) ==
        Dropped{Why::timeout, "it has not joined the next round within 60 s"});
  CHECK(formed({1, 2}).restart_count == 1);
}

// Spare machines, and machines that join later.

TEST_CASE_FIXTURE(Fixture, "a spare machine waits without a limit and replaces a lost one") {
  run({1, 2});
  enter({3});
  world.heard<Welcome>(3);
  CHECK(world.heard<Waiting>(3).text ==
        "waiting for a place: all 2 machines of the job are running");
  world.wait(1h, {1, 2, 3});
  check_no_more({1, 2});
  world.forget_what_was_heard();
  world.lose(1);
  CHECK(world.heard<Ends>(2).end == AttemptEnd{0, "host1", 1, true, Cause::membership,
                                               "machine 0 (host1) is lost: its connection has "
                                               "ended"});
  report({2});
  CHECK(world.heard<Settled>(2).round_result.next == Next::next_round);
  world.wait(59s, {2, 3});
  rejoin({2});
  CHECK(formed({3, 2}).restart_count == 0);  // it gets the rank that is free
  report({2, 3});
  CHECK(all_heard<Settled>({2, 3}).round_result == RoundResult{});
}

TEST_CASE_FIXTURE(Fixture, "machines of the last round have priority over waiting ones") {
  terms.max_restarts = 1;
  run({2, 3});
  enter({1});
  world.say(3, End{{.exit_status = 9, .restarts = true}});
  report({2, 3});
  rejoin({3});  // with agent 1 there would be two
  world.forget_what_was_heard();
  rejoin({2});
  CHECK(formed({2, 3}).restart_count == 1);
  CHECK(contains(world.heard<Waiting>(1).text, "waiting for a place"));
  report({2, 3});
  CHECK(world.heard<Dropped>(1) == Dropped{Why::over, "the job 'run' has ended"});
}

TEST_CASE_FIXTURE(Elastic, "a round tells how many of its machines were in the last one") {
  struct Row {
    AgentId lost;  // after all have reported; 0: none
    std::vector<AgentId> come;
    Ids members;  // of the next round, by rank
    int num_kept;
  };
  for (const Row& row : {Row{0, {4}, {1, 2, 3, 4}, 3}, Row{3, {4, 5}, {1, 2, 4, 5}, 2}}) {
    run_few({1, 2, 3});
    enter(row.come);
    report({1, 2, 3});
    if (row.lost != 0) {
      world.lose(row.lost);
    }
    for (const AgentId agent : {1, 2, 3}) {
      if (agent != row.lost) {
        rejoin({agent});
      }
    }
    CHECK(formed(row.members).num_kept == row.num_kept);
    for (const AgentId agent : row.members) {
      world.lose(agent);
    }
  }
}

TEST_CASE_FIXTURE(Elastic, "machines that join at the same time cause one new round") {
  run_few({1, 2});
  enter({3, 4, 5});
  CHECK(all_heard<Ends>({1, 2}).end.reason ==
        "machine host3 has joined: the next round has 3 machines");
  check_no_more({1, 2});
  report({1, 2});
  rejoin({1, 2});
  formed({1, 2, 3, 4});
  CHECK(world.heard<Welcome>(5) == Welcome{1s, 5s});
}

TEST_CASE_FIXTURE(Elastic, "after workers have succeeded, a new machine causes no restart") {
  run_few({1, 2});
  report({1});
  enter({3});
  check_no_more({1, 2});
  world.heard<Welcome>(3);
  CHECK(world.heard<Waiting>(3).text == "waiting for the next round: machines are running");
  report({2});
  CHECK(all_heard<Settled>({1, 2}).round_result == RoundResult{});
  CHECK(world.heard<Dropped>(3).why == Why::over);
}

TEST_CASE_FIXTURE(Fixture, "10,000 machines form a round") {
  terms = {.num_machines = 10'000, .min_machines = 10'000};
  Ids agents(10'000);
  std::iota(agents.begin(), agents.end(), 10'000);
  Jobs jobs;
  Outbox out;
  const std::clock_t begin = std::clock();
  for (const AgentId agent : agents) {
    out.clear();
    jobs.receive(agent, introduction(agent), Time(1h), out);
  }
  const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(out.size() == agents.size() + 1);
  std::size_t bytes = 0;
  for (const OutgoingMessage& outgoing : out) {
    bytes += outgoing.frame->size();
  }
  CHECK(bytes < 100 * agents.size());
  MESSAGE("10000 machines: " << took << " s of CPU time, " << bytes << " bytes");
}

}  // namespace
}  // namespace acc::rendezvous::rounds
