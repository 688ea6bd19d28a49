// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/training_metrics.hpp"

#include <chrono>
#include <cstdint>
#include <optional>

namespace acc::rendezvous {

/// One worker, as its launcher sees it: its process, and what its program has reported.
struct RankStatus {
  enum class State : std::uint8_t {
    starting,  ///< started, not sampled yet
    running,
    ended,   ///< exit status 0
    failed,  ///< any other end
    lost,    ///< its machine is lost; only the server sets it
  };

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

  bool operator==(const RankStatus&) const = default;
};

}  // namespace acc::rendezvous
