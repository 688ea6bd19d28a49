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

/// Token ids of one micro-batch. inputs, targets: (B, T), the targets one position ahead. A step's
/// loss and gradient are the mean over all ranks' micro-batches of `weight` times their mean; the
/// gradient, not the loss, is `loss_scale` times that (Optimizer::loss_scale).
struct Batch {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  BatchShape shape{};
  float weight = 1.0f;
  float loss_scale = 1.0f;
};

}  // namespace train_gpt
