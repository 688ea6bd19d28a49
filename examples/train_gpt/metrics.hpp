#pragma once

#include "language_model.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <fstream>
#include <string>

namespace train_gpt {

/// What one optimizer step gave. `step` counts from 1.
struct StepResult {
  std::int64_t step = 0;
  double loss = 0.0;  ///< mean over ranks and micro-steps, before the update
  double grad_norm = 0.0;
  double lr = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  ///< a gradient was not finite
  double seconds = 0.0;
  double tokens_per_second = 0.0;  ///< of all ranks together
  double flops_per_second = 0.0;   ///< of all ranks together, by training_flops
};

/// Appends one JSON object a step to --metrics: the result, the strategy in force, and for every
/// rank its memory and traffic. All ranks call `write`; rank 0 owns the file.
class MetricsFile {
 public:
  /// An empty path writes nothing. Keeps what is there when `resumed`.
  MetricsFile(acc::Runtime& runtime, const std::string& path, bool resumed);

  /// Collective. `model`'s traffic is that since its last reset. Throws Error(config) on rank 0 when
  /// the line cannot be written, as on a full disk.
  void write(const StepResult& result, const acc::Model& model, const LanguageModel& gpt);

 private:
  [[noreturn]] void fail() const;

  acc::Runtime& runtime_;
  std::string path_;
  bool enabled_;
  std::ofstream file_;
};

}  // namespace train_gpt
