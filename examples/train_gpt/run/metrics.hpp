// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/language_model.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <fstream>
#include <string>

namespace train_gpt {

/// Result of one optimizer step. Steps are numbered from 1.
struct StepResult {
  std::int64_t step = 0;
  double loss = 0.0;  ///< mean over ranks and micro-steps, before the update
  double grad_norm = 0.0;
  double lr = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  ///< the step was skipped because a gradient was not finite
  double seconds = 0.0;
  double tokens_per_second = 0.0;  ///< sum over all ranks
  double flops_per_second = 0.0;   ///< sum over all ranks, computed with training_flops
};

/// Appends one JSON object per step to the file of --metrics: the result, the sharding strategy,
/// and for each rank its memory and traffic. All ranks call `write`; rank 0 owns the file.
class MetricsFile {
 public:
  /// path: if empty, nothing is written. resumed: append to an existing file instead of replacing
  /// it. Throws Error(config) on rank 0 if the file cannot be opened.
  MetricsFile(acc::Runtime& runtime, const std::string& path, bool resumed);

  /// Writes one line. Collective. The traffic of `model` counts from its last reset. A disk that is
  /// full or fails does not end the training: rank 0 prints a warning and writes no more lines.
  void write(const StepResult& result, const acc::Model& model, const LanguageModel& gpt);

 private:
  /// Returns the message with the reason of errno.
  [[nodiscard]] std::string failure() const;

  acc::Runtime& runtime_;
  std::string path_;
  bool enabled_;
  std::ofstream file_;
};

}  // namespace train_gpt
