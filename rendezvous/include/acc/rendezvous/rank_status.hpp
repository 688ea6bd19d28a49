// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/training_metrics.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// One worker, as its launcher sees it: its process, and what its program has reported.
struct RankStatus {
  enum class State : std::uint8_t {
    starting,  ///< started, not sampled yet
    running,
    ended,    ///< exit status 0
    failed,   ///< any other end
    stopped,  ///< ended by its launcher, after the failure of another worker or on request
    lost,     ///< its machine is lost; only the server sets it
  };
  /// Limits in bytes of `collective`, and of `last_stderr_lines` in total.
  static constexpr std::size_t kMaxCollective = 256;
  static constexpr std::size_t kMaxLines = 1024;
  /// Limit of times that a program may have written.
  static constexpr std::chrono::hours kMaxAge{24 * 365};

  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  State state = State::starting;
  TrainingMetrics metrics{};
  /// Time since the program reported last; empty: it has not.
  std::optional<std::chrono::milliseconds> report_age{};
  std::optional<std::int64_t> resident_bytes{};
  std::optional<double> cpu_percent{};  ///< of one core
  std::optional<double> gpu_percent{};
  std::optional<std::int64_t> gpu_bytes{};
  /// The collective in which it waits, or its last one, for people; empty: it records none.
  std::string collective{};
  std::optional<std::chrono::milliseconds>
      waiting_for{};                             ///< time in `collective`; empty: it moves
  std::vector<std::string> last_stderr_lines{};  ///< oldest first

  bool operator==(const RankStatus&) const = default;
};

}  // namespace acc::rendezvous
