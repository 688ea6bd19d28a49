// SPDX-License-Identifier: Apache-2.0
#include "cuda/batch_upload.hpp"

#include "cuda/cuda_check.hpp"

#include <algorithm>

namespace train_gpt::cuda {
GroupedRows group_rows(std::span<const std::int32_t> ids, std::int64_t vocab) {
  GroupedRows groups;
  // Counting sort, so that each group's rows stay in ascending order. `next` first counts the rows
  // of each token, then holds the next free place of its group.
  std::vector<std::int32_t> next(static_cast<std::size_t>(vocab) + 1);
  for (const std::int32_t id : ids) {
    ++next[static_cast<std::size_t>(id) + 1];
  }
  for (std::size_t token = 0; token < static_cast<std::size_t>(vocab); ++token) {
    if (next[token + 1] > 0) {
      groups.tokens.push_back(static_cast<std::int32_t>(token));
      groups.starts.push_back(next[token]);
    }
    next[token + 1] += next[token];
  }
  groups.starts.push_back(static_cast<std::int32_t>(ids.size()));
  groups.rows.resize(ids.size());
  for (std::size_t row = 0; row < ids.size(); ++row) {
    auto& place = next[static_cast<std::size_t>(ids[row])];
    groups.rows[static_cast<std::size_t>(place++)] = static_cast<std::int32_t>(row);
  }
  return groups;
}

BatchUpload::BatchUpload(cudaStream_t stream, std::int64_t most_rows, std::int64_t vocab)
    : stream_(stream),
      most_rows_(most_rows + 1),
      vocab_(vocab),
      pinned_(static_cast<std::size_t>(kSlots * kParts * most_rows_) * sizeof(std::int32_t),
              "the batches' page-locked memory"),
      device_(kParts * most_rows_, "the batch") {
  for (cudaEvent_t& event : copied_) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
  }
}

BatchUpload::~BatchUpload() {
  for (cudaEvent_t event : copied_) {
    cudaEventDestroy(event);
  }
}

void BatchUpload::copy(std::span<const std::int32_t> from, std::int64_t part) {
  auto* pinned = static_cast<std::int32_t*>(pinned_.data()) + (slot_ * kParts + part) * most_rows_;
  std::copy(from.begin(), from.end(), pinned);
  check(cudaMemcpyAsync(device_.data() + part * most_rows_, pinned, from.size_bytes(),
                        cudaMemcpyHostToDevice, stream_),
        "the copy of a batch");
}

void BatchUpload::start(std::span<const std::int32_t> inputs,
                        std::span<const std::int32_t> targets) {
  slot_ = (slot_ + 1) % kSlots;
  const auto slot = static_cast<std::size_t>(slot_);
  // Waits until the GPU has copied the batch that used this slot, kSlots batches ago.
  check(cudaEventSynchronize(copied_[slot]), "the copy of a batch");
  copy(inputs, 0);
  copy(targets, 1);
  check(cudaEventRecord(copied_[slot], stream_), "an event");
}

TokenGroups BatchUpload::finish(std::span<const std::int32_t> inputs) {
  const GroupedRows groups = group_rows(inputs, vocab_);
  copy(groups.tokens, 2);
  copy(groups.starts, 3);
  copy(groups.rows, 4);
  check(cudaEventRecord(copied_[static_cast<std::size_t>(slot_)], stream_), "an event");
  const std::int32_t* first = device_.data() + 2 * most_rows_;
  return {.tokens = first,
          .starts = first + most_rows_,
          .rows = first + 2 * most_rows_,
          .count = static_cast<std::int64_t>(groups.tokens.size())};
}

}  // namespace train_gpt::cuda
