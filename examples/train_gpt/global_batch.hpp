#pragma once

#include "data_source.hpp"

#include <cstdint>

namespace train_gpt {

/// The consecutive sequences of a global batch that one rank trains on in one micro-step.
struct Share {
  std::int64_t first;
  std::int64_t count;
  float weight;  ///< weight of their mean loss, so that all sequences of the step count equally
};

/// The sequences of one step and their division. Part number micro_step * world_size + rank gets
/// either floor(sequences / parts) or one sequence more.
class GlobalBatch {
 public:
  /// Throws Error(config) if there are fewer sequences than parts.
  GlobalBatch(std::int64_t sequences, DataParallel parallel);

  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  [[nodiscard]] Share share(std::int64_t micro_step) const;
  [[nodiscard]] std::int64_t largest_share() const;

 private:
  std::int64_t sequences_;
  DataParallel parallel_;
};

/// Returns the global batch: the rows per step of the batches file, or --global_batch, or
/// --micro_batch (default 4) sequences per rank and micro-step. Throws Error(config) if the batches
/// file and --micro_batch contradict each other.
GlobalBatch global_batch(const Options& options, DataParallel parallel);

}  // namespace train_gpt
