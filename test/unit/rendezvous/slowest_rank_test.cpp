// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/slowest_rank.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace acc::rendezvous {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;

/// A rank at `time` seconds.
struct Moment {
  int rank;
  double time;
  double noise;  ///< 0 to 1
};

/// A job whose ranks are sampled once per second, each at a moment of its own.
struct Simulated {
  std::string name;
  int num_ranks = 4;
  double seconds = 12.0;
  std::function<std::optional<double>(const Moment&)> step{};   ///< rounded down
  std::function<std::optional<double>(const Moment&)> waits{};  ///< seconds of a step of 1 s
  std::function<std::optional<double>(const Moment&)> hangs{};  ///< seconds in a collective
  std::function<bool(const Moment&)> runs = [](const Moment&) { return true; };
  std::optional<std::size_t> slowest{};

  [[nodiscard]] std::optional<std::size_t> found() const {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> noise(0.0, 1.0);
    std::vector<Pace> paces(static_cast<std::size_t>(num_ranks));
    std::vector<const Pace*> ranks(paces.size());
    for (double second = 0.0; second < seconds; second += 1.0) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        const Moment now{rank, second + std::fmod(0.37 * rank, 1.0), noise(random)};
        RankStatus status{.rank = rank, .state = RankStatus::State::running};
        if (const auto at = step ? step(now) : std::nullopt) {
          status.metrics.step = static_cast<std::int64_t>(std::floor(*at));
        }
        if (waits) {
          status.metrics.step_s = 1.0;
          status.metrics.gather_s = waits(now);
        }
        if (hangs) {
          const auto time = hangs(now);
          status.collective = time ? "all_gather 7, waiting" : "all_gather 6, done";
          if (time) {
            status.waiting_for = duration_cast<std::chrono::milliseconds>(duration<double>(*time));
          }
        }
        const auto index = static_cast<std::size_t>(rank);
        ranks[index] = runs(now) ? &paces[index] : nullptr;
        paces[index].add(
            status,
            Pace::Time(duration_cast<Pace::Time::duration>(duration<double>(1000.0 + now.time))));
      }
    }
    return slowest_rank(ranks);
  }
};

TEST_CASE("the slowest rank is the one that the others wait for, or none") {
  // Steps of a synchronous training of 5 steps per second: samples differ, ranks do not.
  const auto together = [](const Moment& now) { return std::optional(5.0 * now.time); };
  const auto slowly = [](const Moment& now) { return std::optional(1.0 + now.time / 60.0); };
  const std::vector<Simulated> cases = {
      {.name = "nothing is reported"},
      {.name = "one rank", .num_ranks = 1, .step = together},
      {.name = "steps of different moments", .num_ranks = 256, .step = together},
      {.name = "the last step may be one more",
       .num_ranks = 256,
       .step = [](const Moment& now) { return std::optional(3.0 + now.noise + 5.0 * now.time); }},
      {.name = "waits that scatter alike",
       .num_ranks = 256,
       .step = together,
       .waits = [](const Moment& now) { return std::optional(now.noise); }},
      {.name = "waits that are equal",
       .num_ranks = 256,
       .step = together,
       .waits = [](const Moment&) { return std::optional(0.3); }},
      {.name = "one rank waits less, among scatter",
       .num_ranks = 256,
       .step = together,
       .waits =
           [](const Moment& now) {
             return std::optional((now.rank == 3 ? 0.0 : 0.4) + 0.2 * now.noise);
           },
       .slowest = 3},
      {.name = "too few steps for a comparison of waits",
       .num_ranks = 4,
       .step = slowly,
       .waits = [](const Moment& now) { return std::optional(now.rank == 3 ? 0.0 : 0.4); }},
      {.name = "two ranks",
       .num_ranks = 2,
       .step = together,
       .waits = [](const Moment& now) { return std::optional(now.rank == 1 ? 0.02 : 0.4); },
       .slowest = 1},
      {.name = "another rank is slow in each step",
       .num_ranks = 8,
       .seconds = 40,
       .step = together,
       .waits =
           [](const Moment& now) {
             return std::optional((static_cast<int>(5.0 * now.time) * 5 + now.rank) % 8 < 2 ? 0.0
                                                                                            : 0.4);
           }},
      {.name = "a slow machine: its first rank",
       .num_ranks = 64,
       .step = together,
       .waits =
           [](const Moment& now) {
             return std::optional((now.rank / 8 == 5 ? 0.0 : 0.4) + 0.05 * now.noise);
           },
       .slowest = 40},
      {.name = "half of the ranks wait: nothing says which half",
       .num_ranks = 8,
       .step = together,
       .waits = [](const Moment& now) { return std::optional(now.rank % 2 == 0 ? 0.0 : 0.01); }},
      {.name = "a rank falls behind",
       .num_ranks = 256,
       .seconds = 25,
       .step =
           [](const Moment& now) { return std::optional((now.rank == 77 ? 4.0 : 5.0) * now.time); },
       .slowest = 77},
      {.name = "a rank stops one step earlier",
       .num_ranks = 4,
       .step =
           [](const Moment& now) {
             return std::optional(std::min(now.rank == 2 ? 10.0 : 11.0, 5.0 * now.time));
           },
       .slowest = 2},
      {.name = "a rank that has ended is not waited for",
       .num_ranks = 4,
       .step = [](const Moment& now) { return std::optional(now.rank == 2 ? 1.0 : now.time); },
       .runs = [](const Moment& now) { return now.rank != 2; }},
      {.name = "all but one hang in a collective",
       .num_ranks = 256,
       .step = together,
       .hangs =
           [](const Moment& now) {
             return now.rank == 3 ? std::nullopt : std::optional(now.time + 1.0);
           },
       .slowest = 3},
      {.name = "one look at a hang is enough",
       .num_ranks = 4,
       .seconds = 1,
       .hangs = [](const Moment& now) { return now.rank == 1 ? std::nullopt : std::optional(5.0); },
       .slowest = 1},
      {.name = "a collective of this moment is no hang",
       .num_ranks = 256,
       .step = together,
       .hangs =
           [](const Moment& now) {
             return now.noise < 0.5 ? std::nullopt : std::optional(0.3 * now.noise);
           }},
      {.name = "all hang",
       .num_ranks = 4,
       .hangs = [](const Moment&) { return std::optional(9.0); }},
      {.name = "two are absent, and one of them is behind",
       .num_ranks = 8,
       .step =
           [](const Moment& now) {
             return std::optional(now.rank == 5 ? 3.0 : std::min(4.0, 5.0 * now.time));
           },
       .hangs =
           [](const Moment& now) {
             return now.rank >= 4 && now.rank <= 5 ? std::nullopt : std::optional(now.time);
           },
       .slowest = 5},
      {.name = "values that cannot be",
       .num_ranks = 4,
       .step = together,
       .waits =
           [](const Moment& now) {
             return std::optional(now.rank == 1 ? -1e300 : now.rank == 2 ? NAN : 0.4);
           }},
  };
  for (const Simulated& each : cases) {
    CAPTURE(each.name);
    CHECK(each.found() == each.slowest);
  }
}

}  // namespace
}  // namespace acc::rendezvous
