#pragma once

#include "data_source.hpp"

#include <cstdint>

namespace train_gpt {

/// Consecutive sequences of a global batch.
struct Share {
  std::int64_t first;
  std::int64_t count;
  float weight;  ///< of their mean in the mean over all shares, for equally weighted sequences
};

/// The sequences of one step over all ranks and micro-steps, and how they are divided: part
/// micro_step * world_size + rank has the same number as any other, or one more.
class GlobalBatch {
 public:
  /// Throws Error(config) where there are fewer sequences than parts.
  GlobalBatch(std::int64_t sequences, DataParallel parallel);

  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  [[nodiscard]] Share share(std::int64_t micro_step) const;
  [[nodiscard]] std::int64_t largest_share() const;

 private:
  std::int64_t sequences_;
  DataParallel parallel_;
};

/// --global_batch, or as many as the batches file has a step, or --micro_batch (4) for each rank
/// and micro-step. Throws Error(config) where the batches file and --micro_batch contradict each
/// other.
GlobalBatch global_batch(const Options& options, DataParallel parallel);

}  // namespace train_gpt
