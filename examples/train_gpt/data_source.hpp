#pragma once

#include "batch.hpp"
#include "options.hpp"

#include <cstdint>
#include <memory>

namespace train_gpt {

/// Which part of the data a rank is asked for.
struct BatchPosition {
  std::int64_t step;        ///< optimizer steps before this one, counted over all runs
  std::int64_t micro_step;  ///< 0 to accumulation steps - 1
};

/// The ranks among which each step's data are divided, and this one.
struct DataParallel {
  std::int64_t rank;
  std::int64_t world_size;
  std::int64_t micro_steps;
};

/// Training data. A batch is a pure function of the seed, the position and the rank, so that a
/// resumed run sees what the uninterrupted one would have.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// Fills `batch`, whose shape says how many sequences of which length.
  virtual void read(BatchPosition position, Batch& batch) const = 0;
};

/// Opens what the options name and checks this rank's share of its ids against the vocabulary.
/// Throws Error(config) naming the file, and position and id where an id is outside.
std::unique_ptr<DataSource> open_data(const Options& options, DataParallel parallel);

/// --micro_batch, or what it must be for the batches file, or 4.
std::int64_t micro_batch_size(const Options& options, DataParallel parallel);

}  // namespace train_gpt
