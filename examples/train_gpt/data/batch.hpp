// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace train_gpt {

/// B sequences of T tokens each.
struct BatchShape {
  std::int64_t batch;
  std::int64_t time;

  [[nodiscard]] std::int64_t rows() const { return batch * time; }
};

/// Token ids of one micro-batch. inputs, targets: (B, T); targets are shifted by one position. The
/// loss of a step is the mean of weight * (mean loss of the micro-batch) over the micro-batches of
/// all ranks. The gradient is that of the loss times `loss_scale` (Optimizer::loss_scale).
struct Batch {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  BatchShape shape{};
  float weight = 1.0f;
  float loss_scale = 1.0f;
};

}  // namespace train_gpt
