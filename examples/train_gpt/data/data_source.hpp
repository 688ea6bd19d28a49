// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/batch.hpp"

#include <acc/runtime/data_order.hpp>

#include <cstdint>
#include <span>

namespace train_gpt {

/// The division of each step's data among ranks and micro-steps, and this rank's position in it.
struct DataParallel {
  std::int64_t rank;
  std::int64_t world_size;
  std::int64_t micro_steps;

  /// Number of micro-batches per step, over all ranks.
  [[nodiscard]] std::int64_t parts() const { return micro_steps * world_size; }
};

/// Position of a micro-batch in the data.
struct BatchPosition {
  std::int64_t step;      ///< number of optimizer steps before this one, over all resumed runs
  std::int64_t sequence;  ///< index of its first sequence in the step's global batch
  /// With --once_per_epoch, its sequences: number n begins at token n * seq_len. Else empty.
  std::span<const acc::DataSample> windows = {};
};

/// Training data. A sequence is a pure function of the seed, the step and its index in the step's
/// global batch, or of its number among all sequences. So a resumed run gets the same data as an
/// uninterrupted one, with any number of ranks.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// Fills `batch`. Its shape gives the number and the length of the sequences.
  virtual void read(const BatchPosition& position, Batch& batch) const = 0;
  [[nodiscard]] virtual std::int64_t tokens() const = 0;  ///< number of all tokens
};

}  // namespace train_gpt
