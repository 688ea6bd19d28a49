#pragma once

#include "batch.hpp"
#include "options.hpp"

#include <cstdint>
#include <memory>

namespace train_gpt {

/// The ranks among which each step's data are divided, and this one.
struct DataParallel {
  std::int64_t rank;
  std::int64_t world_size;
  std::int64_t micro_steps;

  /// Micro-batches of a step, over all ranks.
  [[nodiscard]] std::int64_t parts() const { return micro_steps * world_size; }
};

/// Which part of the data a micro-batch is.
struct BatchPosition {
  std::int64_t step;      ///< optimizer steps before this one, counted over all runs
  std::int64_t sequence;  ///< of the step's global batch: the micro-batch's first one
};

/// Training data. A sequence is a pure function of the seed, the step and its place in the step's
/// global batch, so that a resumed run sees what the uninterrupted one would have, however many
/// ranks it has.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// Fills `batch`, whose shape says how many sequences of which length.
  virtual void read(BatchPosition position, Batch& batch) const = 0;
};

/// Opens what the options name and checks the ids against the vocabulary; of large data, this
/// rank's share of them. Throws Error(config) naming the file, and position and id where an id is
/// outside.
std::unique_ptr<DataSource> open_data(const Options& options, DataParallel parallel);

}  // namespace train_gpt
