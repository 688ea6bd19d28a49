// SPDX-License-Identifier: Apache-2.0
#include "data/global_batch.hpp"

#include <acc/base/error.hpp>

namespace train_gpt {

std::string to_string(DataParallel parallel) {
  return std::to_string(parallel.micro_steps) + " micro-steps x " +
         std::to_string(parallel.world_size) + " ranks";
}

GlobalBatch::GlobalBatch(std::int64_t sequences, DataParallel parallel)
    : sequences_(sequences), parallel_(parallel) {
  if (sequences < parallel.parts()) {
    throw acc::Error(acc::Errc::config, "a global batch of " + std::to_string(sequences) +
                                            " sequences is too small for " + to_string(parallel) +
                                            ": each needs at least one");
  }
}

// Boundaries are rounded down at sequences * part / parts, so parts differ by at most one sequence.
Share GlobalBatch::share(std::int64_t micro_step) const {
  const std::int64_t parts = parallel_.parts();
  const std::int64_t part = micro_step * parallel_.world_size + parallel_.rank;
  const std::int64_t first = sequences_ * part / parts;
  const std::int64_t count = sequences_ * (part + 1) / parts - first;
  // The step averages the losses of all parts equally. This weight makes up for different counts.
  const double weight = static_cast<double>(count * parts) / static_cast<double>(sequences_);
  return {.first = first, .count = count, .weight = static_cast<float>(weight)};
}

std::int64_t GlobalBatch::largest_share() const {
  return (sequences_ + parallel_.parts() - 1) / parallel_.parts();
}

}  // namespace train_gpt
