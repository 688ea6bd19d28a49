// SPDX-License-Identifier: Apache-2.0
// Memory and time that jobs cost a server, whatever agents send.
#include "rounds/rank_set.hpp"
#include "rounds_fixture.hpp"

#include <doctest/doctest.h>

#include <ctime>

namespace acc::rendezvous::rounds {
namespace {

using namespace test;
using acc::test::contains;
using acc::test::error_of;

using Ranks = std::vector<int>;

TEST_CASE("a set of ranks stores intervals") {
  RankSet ranks(65'536);
  CHECK(ranks.num_runs() == 1);
  CHECK(ranks.lowest(3) == Ranks{0, 1, 2});
  for (const int rank : {0, 65'535, 7, 9, 8}) {
    ranks.erase(rank);
    CHECK_FALSE(ranks.contains(rank));
  }
  CHECK(ranks.num_runs() == 2);  // 1 to 6, 10 to 65534
  CHECK(ranks.lowest(8) == Ranks{1, 2, 3, 4, 5, 6, 10, 11});
  ranks.erase(8);
  CHECK(ranks.num_runs() == 2);
  ranks.insert(8);
  CHECK(ranks.num_runs() == 3);
  ranks.insert(7);
  CHECK(ranks.num_runs() == 2);  // 1 to 8
  ranks.insert(9);
  CHECK(ranks.num_runs() == 1);
  ranks.insert(9);
  CHECK(ranks.lowest(1) == Ranks{1});
  for (int rank = 1; rank < 65'535; ++rank) {
    ranks.erase(rank);
  }
  CHECK(ranks.num_runs() == 0);
  CHECK(ranks.lowest(1).empty());
  CHECK(RankSet().num_runs() == 0);
}

TEST_CASE_FIXTURE(Static,
                  "a job takes memory for connected machines, not for the number it claims") {
  terms.num_machines = terms.min_machines = static_cast<int>(kMaxMachines);
  enter({1});
  CHECK(world.bytes() < 8'000);
  enter({2});
  CHECK(world.bytes() < 16'000);
  world.lose(1);
  world.lose(2);
  CHECK(world.num_jobs() == 0);
  CHECK(world.bytes() == 0);
}

TEST_CASE_FIXTURE(Elastic, "a finished job keeps no reports, and is deleted within an hour") {
  times.close = std::chrono::years(9);
  const std::string large(8'000'000, 'x');
  run_few({1, 2});
  world.say(1, End{{.reason = "over"}});
  world.say(1, Report{true, large});
  CHECK(world.bytes() > large.size());
  world.say(2, Report{true, large});
  CHECK(all_heard<Ends>({1, 2}).end.reason == "over");
  CHECK(all_heard<Settled>({1, 2}).round_result.machines.front().report == large);
  CHECK(world.bytes() < 16'000);
  world.lose(1);
  world.lose(2);
  CHECK(world.num_jobs() == 1);
  CHECK(world.bytes() < 8'000);
  world.wait(1h);
  CHECK(world.num_jobs() == 0);
  CHECK(world.bytes() == 0);
}

TEST_CASE_FIXTURE(Elastic, "a continuing job keeps no reports of its last round") {
  terms.max_restarts = 1;
  run_few({1, 2});
  world.say(1, End{{.restarts = true}});
  world.say(1, Report{true, std::string(8'000'000, 'x')});
  report({2});
  CHECK(world.bytes() < 16'000);
}

TEST_CASE_FIXTURE(Elastic,
                  "an agent without memory for it is refused, others continue without reports") {
  run_few({1, 2});
  world.limit_bytes(world.bytes() + 500);
  const std::size_t before = world.bytes();
  const std::string why = error_of([&] { enter({3}); });
  CHECK_MESSAGE(contains(why, "the server is full: its jobs may take"), why);
  Enter other = introduction(4);
  other.run_id = "other";
  CHECK(contains(error_of([&] { world.say(4, other); }), "the server is full"));
  CHECK(world.bytes() == before);
  check_no_more({1, 2, 3, 4});
  world.say(1, End{{.reason = std::string(1'000, 'r')}});
  CHECK(all_heard<Ends>({1, 2}).end.reason.empty());
  world.say(1, Report{true, std::string(1'000, 'x')});
  world.say(2, Report{true, "short"});
  const RoundResult round_result = all_heard<Settled>({1, 2}).round_result;
  CHECK(round_result.machines.at(0).report.empty());
  CHECK(round_result.machines.at(1).report == "short");
}

/// Returns the CPU time that a job takes to refuse so many machines of different hosts, in seconds.
double time_to_refuse(int count) {
  Fixture fixture;
  fixture.terms.num_machines = fixture.terms.min_machines = count;
  fixture.enter({1});
  const auto now = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double begin = now();
  for (int agent = 2; agent <= count; ++agent) {
    Enter enter = fixture.introduction(static_cast<AgentId>(agent));
    enter.terms.max_restarts = 7;
    fixture.world.say(static_cast<AgentId>(agent), enter);
  }
  const double end = now();
  CHECK(fixture.world.heard<Dropped>(static_cast<AgentId>(count)).why == Dropped::Why::config);
  return end - begin;
}

TEST_CASE("refusing machines takes time in proportion to their number") {
  // 16 times as many machines: quadratic time would be 256 times as long.
  const double few = time_to_refuse(3'000);
  const double many = time_to_refuse(48'000);
  MESSAGE("3000 refused in ", few, " s, 48000 in ", many, " s of CPU time");
  CHECK(many < 100 * few);
}

}  // namespace
}  // namespace acc::rendezvous::rounds
