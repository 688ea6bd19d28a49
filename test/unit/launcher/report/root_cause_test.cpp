// SPDX-License-Identifier: Apache-2.0
#include "report/root_cause.hpp"

#include <doctest/doctest.h>

using namespace acc::launcher;
using acc::flight::Collective;
using acc::flight::Failure;
using acc::flight::Record;
using acc::flight::State;
using Kind = supervision::ProcessEnd::Kind;

namespace {

constexpr supervision::ProcessEnd kOk{Kind::exited, 0};
constexpr supervision::ProcessEnd kTwo{Kind::exited, 2};
constexpr supervision::ProcessEnd kThree{Kind::exited, 3};
constexpr supervision::ProcessEnd kTerminated{Kind::killed, 15};
constexpr supervision::ProcessEnd kKilled{Kind::killed, 9};

/// A worker of a test case. The cases list workers in the order of their ends, from which the
/// report's `moment` is made.
struct Given {
  int rank;
  std::optional<supervision::ProcessEnd> end;
  std::optional<Failure> failure = {};
  bool told_to_end = false;
  const char* last_line = "";
  const char* call = "all_reduce";  ///< its collective 7 in the group
  int first_of_group = 0;
  int group_size = 4;
  bool has_left = false;
};

Failure blames(int rank) {
  return {.at_fault = rank, .timed_out = false, .reason = "rank " + std::to_string(rank)};
}
Failure timed_out(int rank) {
  return {.at_fault = rank, .timed_out = true, .reason = "late"};
}
Failure knows_no_rank() {
  return {.at_fault = std::nullopt, .timed_out = false, .reason = "differs"};
}

std::vector<report::WorkerReport> reports(const std::vector<Given>& given) {
  std::vector<report::WorkerReport> workers;
  for (const Given& each : given) {
    report::WorkerReport worker;
    worker.rank = each.rank;
    worker.end = each.end;
    worker.told_to_end = each.told_to_end || !each.end;
    worker.moment = std::chrono::milliseconds(workers.size());
    if (each.last_line[0] != '\0') {
      worker.last_stderr_lines = {"[W1] Connection reset by peer", "step 7", each.last_line};
    }
    if (each.failure || each.has_left) {
      Record record{.rank = each.rank,
                    .place = {},
                    .has_left = each.has_left,
                    .failure = each.failure,
                    .groups = {},
                    .last = {}};
      record.groups.push_back({.name = "shard",
                               .first = each.first_of_group,
                               .stride = 1,
                               .count = each.group_size,
                               .called = 7,
                               .waiting = 7});
      Collective collective;
      collective.number = 7;
      collective.kind = each.call;
      collective.state = State::failed;
      record.last.push_back(collective);
      worker.flight = record;
    }
    workers.push_back(worker);
  }
  return workers;
}

constexpr const char* kGlooError =
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1";

struct Case {
  const char* what;
  std::vector<Given> workers;  ///< in the order of their ends
  int cause;                   ///< rank; -1: none
  bool is_certain = true;
  int status = 0;
};

const Case kCases[] = {
    {"no failure", {{0, kOk}, {1, kOk}}, -1},
    {"all were told to end", {{0, kTerminated, {}, true}, {1, kTwo, {}, true}}, -1},
    {"two independent failures: the first", {{1, kThree}, {0, kTwo}}, 1, true, 3},
    {"it failed after the peers that name it",
     {{0, kTwo, blames(2)}, {1, kTwo, blames(2)}, {2, kThree}, {3, kTwo, blames(2)}},
     2,
     true,
     3},
    {"its exit with status 0 made its peers fail",
     {{2, kOk}, {0, kTwo, blames(2)}, {1, kTwo, blames(0)}},
     2,
     true,
     2},
    {"a chain of ranks that each name the next",
     {{0, kTwo, blames(1)}, {1, kTwo, blames(3)}, {3, kKilled}, {2, kTerminated, {}, true}},
     3,
     true,
     137},
    {"a chain through a rank that was told to end",
     {{0, kTwo, blames(1)}, {1, kTerminated, blames(2), true}, {2, kThree}},
     2,
     true,
     3},
    {"the rank that most peers name",
     {{0, kTwo, blames(3)}, {1, kTwo, blames(2)}, {2, kThree}, {3, kOk}, {4, kTwo, blames(2)}},
     2,
     true,
     3},
    {"of two ranks named equally often, the one that failed",
     {{0, kTwo, blames(2)}, {1, kTwo, blames(3)}, {2, kOk}, {3, kThree}},
     3,
     true,
     3},
    {"it names itself",
     {{0, kTwo, blames(2)}, {2, kThree, blames(2)}, {1, kTwo, blames(2)}},
     2,
     true,
     3},
    {"it still runs", {{0, kTwo, blames(2)}, {2, std::nullopt}}, 2, false, 2},
    {"it still runs, and its peers timed out",
     {{0, kTwo, timed_out(2)}, {2, std::nullopt}},
     2,
     true,
     2},
    {"its peer timed out, and it was told to end",
     {{0, kTwo, timed_out(1)}, {1, kTerminated, {}, true}},
     1,
     true,
     2},
    {"its peers name a rank that was told to end because of it",
     {{1, kKilled}, {0, kTerminated, {}, true}, {2, kTwo, blames(0)}, {3, kTwo, blames(2)}},
     1,
     true,
     137},
    {"its peer failed, and it was told to end because of that",
     {{0, kTwo, blames(1)}, {1, kTerminated, {}, true}},
     1,
     true,
     2},
    {"it is on another machine", {{1, kTwo, blames(0)}, {0, kTwo, blames(7)}}, 1, false, 2},
    {"one of three ranks made a different call",
     {{0, kTwo, knows_no_rank()},
      {2, kThree, knows_no_rank(), false, "", "barrier"},
      {1, kTwo, knows_no_rank()}},
     2,
     true,
     3},
    {"two calls in a pair: the one that no other pair made",
     {{2, kThree, knows_no_rank(), false, "", "barrier", 2, 2},
      {3, kTwo, knows_no_rank(), false, "", "all_reduce", 2, 2},
      {0, kTwo, knows_no_rank(), false, "", "all_reduce", 0, 2},
      {1, kTwo, knows_no_rank(), false, "", "all_reduce", 0, 2}},
     2,
     true,
     3},
    {"no rank is named, and a worker still runs",
     {{0, kTwo, knows_no_rank()}, {1, std::nullopt}},
     0,
     false,
     2},
    {"no rank is named, but one destroyed its model and exited with 0",
     {{0, kTwo, knows_no_rank()},
      {2, kOk, {}, false, "", "all_reduce", 0, 4, true},
      {1, kTwo, knows_no_rank()}},
     2,
     true,
     2},
    {"no rank is named, but one destroyed its model and failed",
     {{0, kTwo, knows_no_rank()}, {2, kThree, {}, false, "", "all_reduce", 0, 4, true}},
     2,
     true,
     3},
    {"two ranks name each other", {{1, kTwo, blames(0)}, {0, kThree, blames(1)}}, 1, true, 2},
    {"torch: its peers lost the connection first",
     {{0, kTwo, {}, false, kGlooError},
      {1, kTwo, {}, false, kGlooError},
      {2, kThree, {}, false, "ValueError: no data left"}},
     2,
     true,
     3},
    {"torch: the one whose connections were lost still runs",
     {{0, kTwo, {}, false, kGlooError}, {2, std::nullopt}},
     0,
     false,
     2},
    {"torch: all lost a connection",
     {{1, kTwo, {}, false, kGlooError}, {0, kTwo, {}, false, kGlooError}},
     1,
     true,
     2},
    {"torch: one left with status 0 before the others lost a connection",
     {{2, kOk}, {0, kTwo, {}, false, kGlooError}, {1, kTwo, {}, false, kGlooError}},
     2,
     true,
     2},
    {"torch: one left with status 0 after another lost a connection",
     {{0, kTwo, {}, false, kGlooError}, {2, kOk}},
     0,
     true,
     2},
    {"a warning about a connection does not count",
     {{1, kThree, {}, false, "ValueError: bad"}, {0, kTwo, {}, false, "OSError: disk"}},
     1,
     true,
     3},
    {"a signal is not the loss of a connection",
     {{1, kKilled, {}, false, kGlooError}, {0, kThree, {}, false, "ValueError: bad"}},
     1,
     true,
     137},
};

}  // namespace

TEST_CASE("root cause: the worker whose failure made the others fail") {
  for (const Case& each : kCases) {
    CAPTURE(each.what);
    const std::vector<report::WorkerReport> workers = reports(each.workers);
    const report::RootCause cause = report::root_cause(workers, true);
    CHECK((cause.worker ? workers[*cause.worker].rank : -1) == each.cause);
    CHECK(cause.is_certain == each.is_certain);
    if (cause.worker) {
      CHECK(report::exit_status(workers, *cause.worker) == each.status);
    }
  }
}

TEST_CASE("root cause: a failure elsewhere may explain the loss of a connection") {
  const std::vector<report::WorkerReport> workers = reports({{0, kTwo, {}, false, kGlooError}});
  CHECK(root_cause(workers, true).is_certain);
  CHECK_FALSE(root_cause(workers, false).is_certain);
}
