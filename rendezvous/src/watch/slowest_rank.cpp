// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/slowest_rank.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

/// Samples of the same moment may be this far apart. What holds for longer is no accident.
constexpr std::chrono::seconds kLasting{2};
/// Shortest time between two entries of Pace::steps_.
constexpr std::chrono::milliseconds kStepInterval{900};
/// Least number of steps from which waits are compared.
constexpr std::uint8_t kLeastWaits = 4;

/// Appends to the first `count` entries of an array; the oldest one makes room.
template <typename T, std::size_t N>
void append(std::array<T, N>& entries, std::uint8_t& count, T value) {
  if (count == N) {
    std::rotate(entries.begin(), entries.begin() + 1, entries.end());
    --count;
  }
  entries[count++] = value;
}

/// True for a number of seconds that can be; programs report any value.
bool is_duration(double seconds) {
  return seconds >= 0.0 && seconds <= 1e9;
}

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 != 0) {
    return *middle;
  }
  return (*middle + *std::max_element(values.begin(), middle)) / 2.0F;
}

}  // namespace

void Pace::add(const RankStatus& status, Time now) {
  const TrainingMetrics& metrics = status.metrics;
  if (metrics.step && step_ && *metrics.step < *step_) {
    *this = {};  // the program counts anew
  }
  step_ = metrics.step;
  has_record_ = !status.collective.empty();
  waits_since_.reset();
  if (status.waiting_for) {
    waits_since_ = now - *status.waiting_for;
  }
  sampled_at_ = now;
  if (!metrics.step) {
    return;
  }
  if (num_steps_ == 0 || now >= steps_[num_steps_ - 1U].time + kStepInterval) {
    append(steps_, num_steps_, {now, *metrics.step});
  }
  const bool has_waits = metrics.gather_s || metrics.reduce_s || metrics.wait_s;
  if (has_waits && waits_of_ != metrics.step) {
    const double waits = metrics.gather_s.value_or(0.0) + metrics.reduce_s.value_or(0.0) +
                         metrics.wait_s.value_or(0.0);
    const double step_s = metrics.step_s.value_or(0.0);
    waits_of_ = metrics.step;
    if (is_duration(waits) && is_duration(step_s)) {
      append(waits_, num_waits_, static_cast<float>(waits));
      step_s_ = static_cast<float>(step_s);
    }
  }
}

/// The rules of slowest_rank, one after the other.
class SlowestRank {
 public:
  explicit SlowestRank(std::span<const Pace* const> ranks) : ranks_(ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] != nullptr) {
        candidates_.push_back(i);
      }
    }
  }

  std::optional<std::size_t> find() {
    if (candidates_.size() < 2) {
      return std::nullopt;
    }
    const std::vector<std::size_t> running = candidates_;
    keep_absent();
    keep_behind();
    return candidates_.size() == 1 ? std::optional(candidates_.front()) : least_waiting(running);
  }

 private:
  /// Keeps the candidates for which `holds`, if there are any.
  template <typename Holds>
  void keep(const Holds& holds) {
    std::vector<std::size_t> kept;
    std::ranges::copy_if(candidates_, std::back_inserter(kept),
                         [&](std::size_t i) { return holds(*ranks_[i]); });
    if (!kept.empty()) {
      candidates_ = std::move(kept);
    }
  }

  void keep_absent() {
    std::optional<Pace::Time> since;
    for (const std::size_t i : candidates_) {
      if (const auto waits = ranks_[i]->waits_since_) {
        since = std::min(since.value_or(*waits), *waits);
      }
    }
    if (since) {
      keep([&](const Pace& rank) {
        return rank.has_record_ && !rank.waits_since_ && rank.sampled_at_ >= *since + kLasting;
      });
    }
  }

  void keep_behind() {
    const Pace::Step* front = nullptr;  // the highest step that is not new, and the first to do it
    for (const std::size_t i : candidates_) {
      const Pace::Step& oldest = ranks_[i]->steps_.front();
      if (ranks_[i]->num_steps_ > 0 &&
          (front == nullptr ||
           std::pair(-oldest.step, oldest.time) < std::pair(-front->step, front->time))) {
        front = &oldest;
      }
    }
    if (front == nullptr) {
      return;
    }
    std::int64_t lowest = front->step;
    for (const std::size_t i : candidates_) {
      const Pace& rank = *ranks_[i];
      if (rank.step_ && rank.sampled_at_ >= front->time + kLasting) {
        lowest = std::min(lowest, *rank.step_);
      }
    }
    if (lowest < front->step) {
      keep([&](const Pace& rank) { return rank.step_ == lowest; });
    }
  }

  std::optional<std::size_t> least_waiting(const std::vector<std::size_t>& running) const {
    std::vector<float> means;
    std::vector<float> durations;
    std::vector<std::pair<float, std::size_t>> waits;  // mean and rank, of the candidates
    double scatter = 0.0;  // sum of the squared standard errors of the means
    for (const std::size_t i : running) {
      const Pace& rank = *ranks_[i];
      if (rank.num_waits_ < kLeastWaits) {
        continue;
      }
      const auto all = std::span(rank.waits_).first(rank.num_waits_);
      const auto count = static_cast<float>(all.size());
      const float mean = std::accumulate(all.begin(), all.end(), 0.0F) / count;
      for (const float each : all) {
        scatter += (each - mean) * (each - mean) / (count * (count - 1.0F));
      }
      means.push_back(mean);
      durations.push_back(rank.step_s_ > 0.0F ? rank.step_s_ : mean);
      if (std::ranges::binary_search(candidates_, i)) {
        waits.emplace_back(mean, i);
      }
    }
    if (means.size() < 2 || waits.empty()) {
      return std::nullopt;
    }
    const auto error = static_cast<float>(std::sqrt(scatter / static_cast<double>(means.size())));
    const float margin = std::max(0.05F * median(std::move(durations)), 4.0F * error);
    const float usual = median(std::move(means));
    const float least = std::ranges::min(waits).first;
    if (least + margin >= usual) {
      return std::nullopt;
    }
    const auto found = std::ranges::find_if(waits, [&](const auto& each) {
      return each.first <= least + margin && each.first + margin < usual;
    });
    return found->second;
  }

  std::span<const Pace* const> ranks_;
  std::vector<std::size_t> candidates_;  ///< ascending
};

std::optional<std::size_t> slowest_rank(std::span<const Pace* const> ranks) {
  return SlowestRank(ranks).find();
}

}  // namespace acc::rendezvous
