// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/training_metrics.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace acc::launcher::monitor {

/// Reads the reports of one worker, which may write anything: one JSON object per line
/// (docs/watching.md). Keeps the last value of each name.
class ReportLines {
 public:
  static constexpr std::size_t kMaxLineBytes = 4096;

  /// Takes the next bytes. Parses at most `max_lines` lines of them, and only counts the others.
  void take(std::string_view bytes, std::size_t max_lines = SIZE_MAX);
  /// Values of all lines so far.
  [[nodiscard]] const TrainingMetrics& metrics() const noexcept { return metrics_; }
  [[nodiscard]] std::uint64_t num_reports() const noexcept { return num_reports_; }
  /// Lines that were no report: not a JSON object, too long, or more than `max_lines`.
  [[nodiscard]] std::uint64_t num_refused() const noexcept { return num_refused_; }

 private:
  void take_line(const std::string& line);

  std::string line_;          // the beginning of a line
  bool is_too_long_ = false;  // the rest of this line is discarded
  TrainingMetrics metrics_;
  std::uint64_t num_reports_ = 0;
  std::uint64_t num_refused_ = 0;
};

}  // namespace acc::launcher::monitor
