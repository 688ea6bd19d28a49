// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/rank_status.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

namespace acc::rendezvous {

/// The last samples of one rank, as far as they are compared with those of other ranks. The ranks
/// of a job are sampled at different moments, so that one sample of each says nothing.
class Pace {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Takes a sample of the rank, made at `now`.
  void add(const RankStatus& status, Time now);

 private:
  friend class SlowestRank;

  struct Step {
    Time time{};
    std::int64_t step = 0;
  };
  std::array<Step, 4> steps_{};   ///< one per second at most, oldest first
  std::array<float, 8> waits_{};  ///< seconds in which the rank waited in a step, oldest first
  std::uint8_t num_steps_ = 0;
  std::uint8_t num_waits_ = 0;
  float step_s_ = 0.0F;                   ///< duration of the last step; 0: unknown
  bool has_record_ = false;               ///< it is known whether the rank waits in a collective
  std::optional<std::int64_t> step_;      ///< of the last sample
  std::optional<std::int64_t> waits_of_;  ///< step of the last entry of `waits_`
  std::optional<Time> waits_since_;       ///< beginning of the collective in which it waits
  Time sampled_at_{};
};

/// Returns the index of the rank that the others wait for; nothing if the samples distinguish none.
/// Null stands for a rank that does not run. In this order:
/// 1. Ranks that are in no collective although another rank has been waiting in one for kLasting.
/// 2. Of these, or of all: ranks that have not done a step that another had done kLasting before.
/// 3. If that is not one rank: of these, or of all, those that wait clearly less in a step than the
///    median rank, by 5 % of a step and by four times the scatter of the mean. The lowest of them
///    is returned if several wait equally little, such as the ranks of a slow machine.
std::optional<std::size_t> slowest_rank(std::span<const Pace* const> ranks);

}  // namespace acc::rendezvous
