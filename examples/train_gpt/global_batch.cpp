#include "global_batch.hpp"

#include "batch_file.hpp"

#include <acc/base/error.hpp>

#include <string>

namespace train_gpt {
namespace {

std::string parts_text(DataParallel parallel) {
  return std::to_string(parallel.micro_steps) + " micro-steps x " +
         std::to_string(parallel.world_size) + " ranks";
}

std::int64_t rows_of_batch_file(const Options& options, DataParallel parallel) {
  const std::int64_t rows = read_batch_file_shape(options.batches).rows;
  if (options.micro_batch && *options.micro_batch * parallel.parts() != rows) {
    throw acc::Error(acc::Errc::config, options.batches + ": " + std::to_string(rows) +
                                            " rows per step are not " + parts_text(parallel) +
                                            " x micro-batch " +
                                            std::to_string(*options.micro_batch));
  }
  return rows;
}

}  // namespace

GlobalBatch::GlobalBatch(std::int64_t sequences, DataParallel parallel)
    : sequences_(sequences), parallel_(parallel) {
  if (sequences < parallel.parts()) {
    throw acc::Error(acc::Errc::config, "a global batch of " + std::to_string(sequences) +
                                            " sequences is too small for " + parts_text(parallel) +
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

GlobalBatch global_batch(const Options& options, DataParallel parallel) {
  constexpr std::int64_t kMicroBatch = 4;
  if (!options.batches.empty()) {
    return {rows_of_batch_file(options, parallel), parallel};
  }
  const std::int64_t micro_batch = options.micro_batch.value_or(kMicroBatch);
  return {options.global_batch.value_or(micro_batch * parallel.parts()), parallel};
}

}  // namespace train_gpt
