// SPDX-License-Identifier: Apache-2.0
#include "sharding/pools.hpp"

#include "collectives/solo/solo_group.hpp"
#include "device/cpu_device.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace {

/// The gathers and reductions that were waited for, in order.
using Log = std::string;

class NotedWork final : public acc::collectives::Work {
 public:
  NotedWork(Log& log, char name) : log_(log), name_(name) {}
  void wait() override { log_ += name_; }
  void wait_released() override { log_ += name_; }

 private:
  Log& log_;
  char name_;
};

}  // namespace

TEST_CASE("gathers after a step are limited by the bucket size") {
  struct Case {
    const char* name;
    std::int64_t bucket;
    const char* waited;  ///< waits caused by four gathers a, b, c, d of 10, 10, 30, 5 elements
  };
  for (const Case& each :
       {Case{"no bound", 0, ""}, Case{"all fit", 55, ""}, Case{"two fit", 20, "abc"},
        Case{"larger ones go alone", 1, "abc"}, Case{"the oldest goes", 45, "a"}}) {
    CAPTURE(each.name);
    Log log;
    acc::sharding::GatherWindow window(each.bucket);
    std::vector<acc::collectives::WorkPtr> started;
    char name = 'a';
    for (const std::int64_t numel : {10, 10, 30, 5}) {
      started.push_back(
          window.start(numel, [&] { return std::make_shared<NotedWork>(log, name); }));
      CHECK(started.back() != nullptr);
      ++name;
    }
    CHECK(log == each.waited);
  }
}

TEST_CASE("gathers that a unit has waited for do not count and are not kept") {
  Log log;
  acc::sharding::GatherWindow window(25);
  std::vector<std::weak_ptr<acc::collectives::Work>> seen;
  for (char name = 'a'; name <= 'j'; ++name) {
    const auto gather = window.start(10, [&] { return std::make_shared<NotedWork>(log, name); });
    seen.push_back(gather);
    gather->wait();
  }
  CHECK(log == "abcdefghij");
  CHECK(std::ranges::all_of(seen, [](const auto& each) { return each.expired(); }));
}

TEST_CASE("overlap_comm: a reduction is waited for where it is issued, or two buffers later") {
  for (const bool overlaps : {true, false}) {
    CAPTURE(overlaps);
    Log log;
    acc::collectives::SoloGroup group({.name = "solo", .ranks = {0}, .rank = 0},
                                      acc::device::open_cpu_device(1));
    acc::sharding::GradientPool pool(group, nullptr, acc::settings::buffer_counts(true, overlaps));
    std::string after_each;
    for (const char name : {'a', 'b', 'c'}) {
      auto buffer = pool.acquire(64);
      pool.in_flight(std::move(buffer), std::make_shared<NotedWork>(log, name), "layer", {});
      after_each += log + "|";
    }
    CHECK(after_each == (overlaps ? "||a|" : "a|ab|abc|"));
    CHECK(pool.held_nbytes() == (overlaps ? 2 : 1) * 64);
    pool.drain();
    CHECK(log == "abc");
  }
}
