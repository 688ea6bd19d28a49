// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device_buffer.hpp"
#include "cuda/kernels.hpp"
#include "data/batch.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace train_gpt::cuda {

/// Rows of a batch grouped by their token id. Groups are in ascending order of the id, the rows of
/// a group in ascending order.
struct GroupedRows {
  std::vector<std::int32_t> tokens;  ///< token id of each group
  std::vector<std::int32_t> starts;  ///< start of each group in `rows`, and the end of the last one
  std::vector<std::int32_t> rows;
};
/// Groups the rows of `ids`. All ids must be below `vocab`.
GroupedRows group_rows(std::span<const std::int32_t> ids, std::int64_t vocab);

/// Copies batches to the GPU through page-locked memory. The host waits for a copy only if it is
/// kSlots batches ahead of the GPU.
class BatchUpload {
 public:
  BatchUpload(cudaStream_t stream, std::int64_t most_rows, std::int64_t vocab);
  ~BatchUpload();
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  /// Queues the copy of inputs and targets; targets may be empty. All ids must be in the
  /// vocabulary.
  void start(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets);
  /// Groups the inputs on the host, while the GPU works, and queues that copy too.
  TokenGroups finish(std::span<const std::int32_t> inputs);

  [[nodiscard]] const std::int32_t* inputs() const { return device_.data(); }
  [[nodiscard]] const std::int32_t* targets() const { return device_.data() + most_rows_; }

 private:
  static constexpr int kSlots = 4;
  static constexpr std::int64_t kParts = 5;  // inputs, targets, tokens, starts, rows

  void copy(std::span<const std::int32_t> from, std::int64_t part);

  cudaStream_t stream_;
  std::int64_t most_rows_;
  std::int64_t vocab_;
  PinnedMemory pinned_;  // (slots, parts, most rows + 1 for the last start)
  DeviceBuffer<std::int32_t> device_;
  std::array<cudaEvent_t, kSlots> copied_{};
  int slot_ = 0;
};

}  // namespace train_gpt::cuda
