// SPDX-License-Identifier: Apache-2.0
#include "report/late_ranks.hpp"

#include "report/job_report.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace acc::launcher;
using acc::flight::Collective;
using acc::flight::Group;
using acc::flight::Record;
using acc::flight::State;

namespace {

/// A rank's last collective in one group.
struct Did {
  Group group;
  std::uint32_t number;
  State state;
  const char* kind = "reduce_scatter";
  std::uint64_t nbytes = 1024;
};

Group world(int ranks) {
  return {.name = "world", .first = 0, .stride = 1, .count = ranks};
}

report::WorkerReport worker(int rank, const std::vector<Did>& did) {
  report::WorkerReport report;
  report.rank = rank;
  report.host = "node0";
  report.ended_at = std::chrono::system_clock::time_point(std::chrono::seconds(103));
  Record record{.rank = rank, .place = {"backward", "h.2"}, .groups = {}, .last = {}};
  for (const Did& each : did) {
    Group group = each.group;
    const bool waits = each.state == State::waiting || each.state == State::failed;
    group.called = each.number;
    group.waiting = waits ? each.number : 0;
    record.groups.push_back(group);
    record.last.push_back({.group = record.groups.size() - 1,
                           .number = each.number,
                           .kind = each.kind,
                           .nbytes = each.nbytes,
                           .state = each.state,
                           .place = {"backward", "h.3"},
                           .called_us = 99'000'000,
                           .waiting_us = waits ? 100'000'000 : 0,
                           .ended_us = 0});
  }
  report.flight = record;
  return report;
}

using Ranks = std::vector<int>;

}  // namespace

TEST_CASE("late ranks: ranks that did not enter the collective their peers wait in") {
  const Group pair01{.name = "shard", .first = 0, .stride = 1, .count = 2};
  const Group pair13{.name = "replicate", .first = 1, .stride = 2, .count = 2};
  const State waiting = State::waiting;
  const State done = State::done;
  const struct {
    const char* what;
    std::vector<report::WorkerReport> workers;
    Ranks late;
    Ranks waiters;
  } cases[] = {
      {"all in step", {worker(0, {{world(2), 7, done}}), worker(1, {{world(2), 7, done}})}, {}, {}},
      {"all wait",
       {worker(0, {{world(2), 7, waiting}}), worker(1, {{world(2), 7, waiting}})},
       {},
       {}},
      {"one did not call",
       {worker(0, {{world(3), 8, waiting}}), worker(1, {{world(3), 7, done}}),
        worker(2, {{world(3), 8, State::failed}})},
       {1},
       {0, 2}},
      {"one called it, but does not wait in it yet",
       {worker(0, {{world(2), 8, waiting}}), worker(1, {{world(2), 8, State::called}})},
       {1},
       {0}},
      {"a rank that has finished its part is not late",
       {worker(0, {{world(2), 8, waiting}}), worker(1, {{world(2), 8, done}})},
       {},
       {}},
      {"one waits in another group for the one that is late",
       {worker(0, {{pair01, 5, waiting}}), worker(1, {{pair01, 4, done}, {pair13, 2, waiting}}),
        worker(3, {{pair13, 1, done}})},
       {3},
       {1}},
      {"a rank without a record",
       {worker(0, {{world(3), 8, waiting}}), worker(2, {{world(3), 8, waiting}})},
       {1},
       {0, 2}},
      {"no records", {report::WorkerReport{}, report::WorkerReport{}}, {}, {}},
  };
  for (const auto& [what, workers, late, waiters] : cases) {
    CAPTURE(what);
    const auto found = report::late_ranks(workers, std::nullopt);
    REQUIRE(found.size() == (late.empty() ? 0 : 1));
    if (!late.empty()) {
      CHECK(found[0].ranks == late);
      CHECK(found[0].waiting == waiters);
      CHECK(found[0].called.empty());
    }
  }
}

TEST_CASE("late ranks: a failure outside of a collective hides waits that do not include it") {
  std::vector<report::WorkerReport> workers = {worker(0, {{world(3), 8, State::waiting}}),
                                               worker(1, {{world(3), 7, State::done}}),
                                               worker(2, {{world(3), 7, State::done}})};
  CHECK(report::late_ranks(workers, 1).at(0).ranks == Ranks{1, 2});
  CHECK(late_ranks(workers, 0).empty());
  workers[0].flight->last[0].state = State::failed;
  CHECK(report::late_ranks(workers, 0).at(0).ranks == Ranks{1, 2});
}

TEST_CASE("late ranks: the minority called a different collective; of two ranks, the second") {
  std::vector<report::WorkerReport> workers = {
      worker(0, {{world(3), 8, State::failed, "all_reduce", 64}}),
      worker(1, {{world(3), 8, State::failed}}), worker(2, {{world(3), 8, State::waiting}})};
  CHECK(report::late_ranks(workers, 1).at(0).ranks == Ranks{0});
  CHECK(report::late_ranks(workers, 1).at(0).called == "all_reduce of 64 bytes");
  workers.pop_back();
  CHECK(report::late_ranks(workers, 1).at(0).ranks == Ranks{1});
}

TEST_CASE("the text report: the late rank first, ranks with the same last collective together") {
  std::vector<report::WorkerReport> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(rank == 2 ? worker(rank, {{world(4), 40, State::done}})
                                : worker(rank, {{world(4), 41, State::waiting}}));
  }
  CHECK(report::last_collectives(workers, report::late_ranks(workers, std::nullopt)) ==
        "  late      rank 2 did not enter reduce_scatter 41 of unit h.3, backward, in which "
        "ranks 0-1,3 waited for 3 s\n"
        "  last collectives:\n"
        "    rank 2: reduce_scatter 40 of unit h.3, backward, done; then in backward of unit h.2\n"
        "    ranks 0-1,3: reduce_scatter 41 of unit h.3, backward, waiting\n");
  CHECK(report::last_collectives({report::WorkerReport{}}, {}).empty());
  workers = {worker(0, {{world(4), 41, State::waiting}}),
             worker(1, {{world(4), 41, State::waiting}})};
  CHECK(acc::test::contains(
      report::last_collectives(workers, report::late_ranks(workers, std::nullopt)),
      "  late      no record of ranks 2-3; ranks 0-1 waited in reduce_scatter 41 of unit h.3, "
      "backward for 3 s\n"));
  workers = {worker(0, {{world(4), 41, State::waiting}}),
             worker(1, {{world(4), 41, State::called}})};
  CHECK(acc::test::contains(
      report::last_collectives(workers, report::late_ranks(workers, std::nullopt)),
      "rank 1 did not enter reduce_scatter 41 of unit h.3, backward, in which rank 0 waited for "
      "3 s; no record of ranks 2-3\n"));
}

TEST_CASE("the text report: a thousand different last collectives give a limited number of lines") {
  std::vector<report::WorkerReport> workers;
  for (int rank = 0; rank < 1000; ++rank) {
    workers.push_back(
        worker(rank, {{world(1000), static_cast<std::uint32_t>(rank + 1), State::called}}));
  }
  const std::string text =
      report::last_collectives(workers, report::late_ranks(workers, std::nullopt));
  CHECK(std::ranges::count(text, '\n') < 20);
}

TEST_CASE("a machine's report contains flight records, shortened if there are many workers") {
  report::MachineReport report{
      0, "node0", {worker(0, {{world(2), 7, State::waiting}}), report::WorkerReport{}}};
  CHECK(report::decode_machine_report(encode(report)).workers == report.workers);
  auto& last = report.workers[0].flight->last;
  last.resize(64, Collective(last[0]));
  report.workers.resize(1000, report.workers[0]);
  const std::string text = report::encode(report);
  CHECK(text.size() < std::size_t{8} << 20);
  const auto read = report::decode_machine_report(text).workers;
  CHECK(read.back().flight->last.size() == 8);
  CHECK(read.back().flight->groups == report.workers.back().flight->groups);
}
