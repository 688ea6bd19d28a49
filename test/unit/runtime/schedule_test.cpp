// SPDX-License-Identifier: Apache-2.0
#include "sharding/schedule.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

namespace {

using acc::settings::BackwardPrefetch;
using acc::sharding::Schedule;
using acc::sharding::ScheduleRules;

/// Runs a schedule with the scopes of a program and writes down its decisions: g1: unit 1 is
/// gathered for its scope; p1: it is gathered early; x1: it is freed.
class Player {
 public:
  Player(ScheduleRules rules, const std::vector<std::int64_t>& numels) : schedule_(rules) {
    for (const std::int64_t numel : numels) {
      schedule_.add_unit({.numel = numel, .is_root = live_.empty()});
      live_.push_back(false);
    }
  }

  /// program: F1 and f1 begin and end a forward of unit 1, R1 and r1 a recomputation, B1 and b1 a
  /// backward; | is an optimizer step. Returns the decisions.
  std::string play(const std::string& program) {
    log_.clear();
    std::istringstream events(program);
    for (std::string event; events >> event;) {
      const int unit = event.size() > 1 ? event[1] - '0' : -1;
      switch (event[0]) {
        case 'F': open(unit, &Schedule::before_forward); break;
        case 'R': open(unit, &Schedule::before_recompute); break;
        case 'B': open(unit, &Schedule::before_backward); break;
        case 'f':
          free_if(schedule_.frees_after_forward(unit), unit);
          schedule_.after_forward(unit);
          break;
        case 'b':
          schedule_.end_backward(unit);
          free_if(schedule_.frees_after_backward(unit), unit);
          gather_early(schedule_.after_backward(unit));
          break;
        case '|':
          for (std::size_t each = 0; each < live_.size(); ++each) {
            free_if(live_[each], static_cast<int>(each));
          }
          schedule_.after_step();
          break;
        default: break;
      }
    }
    return log_;
  }

 private:
  void open(int unit, std::vector<int> (Schedule::*begin)(int)) {
    gather('g', unit);
    gather_early((schedule_.*begin)(unit));
  }
  void gather_early(const std::vector<int>& units) {
    for (const int unit : units) {
      CHECK_FALSE(live_[static_cast<std::size_t>(unit)]);
      gather('p', unit);
    }
  }
  void gather(char how, int unit) {
    if (!live_[static_cast<std::size_t>(unit)]) {
      note(how, unit);
      live_[static_cast<std::size_t>(unit)] = true;
    }
    schedule_.gathered(unit);
  }
  void free_if(bool frees, int unit) {
    if (frees) {
      note('x', unit);
      live_[static_cast<std::size_t>(unit)] = false;
      schedule_.freed(unit);
    }
  }
  void note(char what, int unit) {
    log_ += log_.empty() ? "" : " ";
    log_ += what + std::to_string(unit);
  }

  Schedule schedule_;
  std::vector<bool> live_;
  std::string log_;
};

/// A root of 10 elements around two blocks of 100.
const std::vector<std::int64_t> kNumels = {10, 100, 100};
constexpr const char* kStep = "F0 F1 f1 F2 f2 f0 B0 B2 b2 B1 b1 b0 |";

struct Case {
  const char* name;
  ScheduleRules rules;
  const char* first;   ///< decisions in the first iteration
  const char* second;  ///< decisions in every later iteration
};

}  // namespace

TEST_CASE("which units are gathered and freed, and when") {
  constexpr const char* kPlain = "g0 g1 x1 g2 x2 g2 x2 g1 x1 x0";
  for (const Case& each : {
           Case{"no prefetch", {}, kPlain, kPlain},
           Case{"backward_pre: while the one before it computes",
                {.backward = BackwardPrefetch::backward_pre},
                "g0 g1 x1 g2 x2 p2 p1 x2 x1 x0",
                "g0 g1 x1 g2 x2 p2 p1 x2 x1 x0"},
           Case{"backward_post: after the one before it was freed",
                {.backward = BackwardPrefetch::backward_post},
                "g0 g1 x1 g2 x2 g2 x2 p1 x1 x0",
                "g0 g1 x1 g2 x2 g2 x2 p1 x1 x0"},
           Case{"forward: by the order of the first iteration",
                {.forward = true},
                kPlain,
                "g0 p1 p2 x1 x2 g2 x2 g1 x1 x0"},
           Case{"kept after forward, freed after backward",
                {.reshard_after_forward = false},
                "g0 g1 g2 x2 x1 x0",
                "g0 g1 g2 x2 x1 x0"},
           Case{"the root freed as well",
                {.reshard_root = true},
                "g0 g1 x1 g2 x2 x0 g0 g2 x2 g1 x1 x0",
                "g0 g1 x1 g2 x2 x0 g0 g2 x2 g1 x1 x0"},
           Case{"kept only as long as no more than max_live is gathered",
                {.reshard_after_forward = false, .max_live = 150},
                "g0 g1 g2 x2 g2 x2 x1 x0",
                "g0 g1 g2 x2 g2 x2 x1 x0"},
           Case{"early only where it fits into max_live",
                {.backward = BackwardPrefetch::backward_pre, .max_live = 150},
                "g0 g1 x1 g2 x2 p2 x2 g1 x1 x0",
                "g0 g1 x1 g2 x2 p2 x2 g1 x1 x0"},
           Case{"a bucket of one unit and a half: two units ahead",
                {.prefetch_bucket = 150},
                kPlain,
                "g0 p1 p2 x1 p1 x2 p2 x2 x1 x0"},
           Case{"a bucket of one unit",
                {.prefetch_bucket = 100},
                kPlain,
                "g0 p1 p2 x1 p1 x2 p2 x2 x1 x0"},
           Case{"a bucket takes the place of FSDP's prefetches",
                {.backward = BackwardPrefetch::backward_pre, .forward = true, .prefetch_bucket = 1},
                kPlain,
                "g0 p1 p2 x1 p1 x2 p2 x2 x1 x0"},
           Case{"a bucket within max_live",
                {.prefetch_bucket = 150, .max_live = 200},
                kPlain,
                "g0 p1 x1 g2 x2 p2 x2 g1 x1 x0"},
           Case{"kept for a use after less than the reuse distance",
                {.max_reuse_distance = 50},
                kPlain,
                "g0 g1 x1 g2 x2 g1 x1 x0"},
           Case{"kept for every use", {.max_reuse_distance = 1000}, kPlain, "g0 g1 g2 x2 x1 x0"},
           Case{"kept for every use within max_live",
                {.max_live = 200, .max_reuse_distance = 1000},
                kPlain,
                "g0 g1 g2 x2 g2 x2 x1 x0"},
       }) {
    CAPTURE(each.name);
    Player player(each.rules, kNumels);
    CHECK(player.play(kStep) == each.first);
    CHECK(player.play(kStep) == each.second);
    CHECK(player.play(kStep) == each.second);
  }
}

TEST_CASE("an iteration that differs from the recorded one is not prefetched and is recorded") {
  Player player({.prefetch_bucket = 1000}, kNumels);
  player.play(kStep);
  const std::string short_step = "F0 F1 f1 f0 B0 B1 b1 b0 |";
  // Unit 2 was expected. After the difference nothing is gathered early, and the step frees unit 2.
  CHECK(player.play(short_step) == "g0 p1 p2 x1 g1 x1 x0 x2");
  CHECK(player.play(short_step) == "g0 p1 x1 p1 x1 x0");
  // A longer iteration again: it is followed up to the end of the record.
  CHECK(player.play(kStep) == "g0 p1 x1 g2 x2 g2 x2 g1 x1 x0");
}

TEST_CASE("an iteration is a micro-step") {
  Player player({.max_reuse_distance = 1000}, kNumels);
  const std::string micro_step = "F0 F1 f1 F2 f2 f0 B0 B2 b2 B1 b1 b0";
  CHECK(player.play(micro_step) == "g0 g1 x1 g2 x2 g2 x2 g1 x1 x0");
  CHECK(player.play(micro_step) == "g0 g1 g2 x2 x1 x0");
  CHECK(player.play("F0 F1 f1 f0 B0 B1 b1 b0 |") == "g0 g1 x1 x0");
}

TEST_CASE("after a second backward of its forwards, the next micro-step is as usual") {
  const std::string micro_step = "F1 f1 F2 f2 B2 b2 B1 b1";
  Player player({.prefetch_bucket = 150, .max_reuse_distance = 50}, kNumels);
  player.play(micro_step);
  const std::string usual = player.play(micro_step);
  player.play(micro_step + " B2 b2 B1 b1");
  player.play(micro_step);  // its order is recorded again
  player.play(micro_step);  // frees what the record of the longer one kept
  CHECK(player.play(micro_step) == usual);
}

TEST_CASE("a unit that is used twice is counted once") {
  Player player({.prefetch_bucket = 150}, kNumels);
  const std::string step = "F1 f1 F1 f1 F2 f2 B2 b2 B1 b1 B1 b1 |";
  CHECK(player.play(step) == "g1 x1 g1 x1 g2 x2 g2 x2 g1 x1 g1 x1");
  CHECK(player.play(step) == "g1 p2 x1 g1 x1 p1 x2 g2 x2 x1 g1 x1");
}

TEST_CASE("a recomputation begins the backward of its unit") {
  const std::string step = "F1 f1 F2 f2 R2 r2 B2 b2 R1 r1 B1 b1 |";
  const std::vector<std::int64_t> numels = {10, 100, 100};
  for (const Case& each : {
           Case{"no prefetch", {}, "g1 x1 g2 x2 g2 x2 g1 x1", "g1 x1 g2 x2 g2 x2 g1 x1"},
           Case{"backward_pre",
                {.backward = BackwardPrefetch::backward_pre},
                "g1 x1 g2 x2 g2 p1 x2 x1",
                "g1 x1 g2 x2 g2 p1 x2 x1"},
           Case{"a bucket of a unit",
                {.prefetch_bucket = 100},
                "g1 x1 g2 x2 g2 x2 g1 x1",
                "g1 p2 x1 p1 x2 g2 x2 x1"},
       }) {
    CAPTURE(each.name);
    Player player(each.rules, numels);
    CHECK(player.play(step) == each.first);
    CHECK(player.play(step) == each.second);
  }
}

TEST_CASE("recomputations inside their backwards do not change the execution order") {
  Player player({.prefetch_bucket = 100}, {10, 100, 100, 100});
  const std::string micro_step = "F1 f1 F2 f2 F3 f3 B3 R3 r3 b3 B2 R2 r2 b2 B1 R1 r1 b1";
  player.play(micro_step);
  for (const char* end : {"", " |", ""}) {
    CHECK(player.play(micro_step + end) == "g1 p2 x1 p3 x2 p2 x3 g3 x3 p1 x2 x1");
  }
}
