// SPDX-License-Identifier: Apache-2.0
#include "sharding/gradient/gradient_watch.hpp"

#include <algorithm>
#include <cmath>

namespace acc::sharding {

/// A step usually has one gradient per micro-step; the last place takes all further ones.
void GradientWatch::record(const WrittenGradient& gradient, std::int64_t number, int micro_step) {
  device::Device& device = *context_.device;
  const auto micro_steps = static_cast<std::size_t>(context_.settings.sharding.micro_steps());
  if (!squares_) {
    squares_ = device.allocate(micro_steps * sizeof(double), "gradient watch");
  }
  double* const sum = squares_->as<double>() + std::min(closed_.size(), micro_steps - 1);
  if (closed_.size() < micro_steps) {
    device.zero(sum, sizeof(double), device.compute());
  }
  closed_.push_back({number, micro_step});
  const DType viewed = layout_.precision.viewed;
  for (std::size_t i = 0; i < layout_.numels.size(); ++i) {
    const std::byte* values = gradient.values(i);
    if (values == nullptr) {
      continue;
    }
    const auto numel = static_cast<std::size_t>(layout_.numels[i]);
    device::MemoryPtr widened;
    if (viewed != DType::float32) {
      widened = scratch_.acquire(numel * sizeof(float));
      device.cast(values, viewed, widened->data(), DType::float32, numel, device.compute());
      values = widened->data();
    }
    device.add_squared_norm(reinterpret_cast<const float*>(values), numel, sum, device.compute());
    if (widened) {
      scratch_.release(std::move(widened));
    }
  }
}

std::optional<std::int64_t> GradientWatch::first_non_finite() const {
  device::Device& device = *context_.device;
  std::vector<double> sums(squares_ ? squares_->nbytes() / sizeof(double) : 0);
  if (!sums.empty()) {
    device.copy(sums.data(), squares_->data(), squares_->nbytes(), device.compute());
    device.record(device.compute())->synchronize();
  }
  for (std::size_t i = 0; i < std::min(sums.size(), closed_.size()); ++i) {
    if (!std::isfinite(sums[i])) {
      return closed_[i].number;
    }
  }
  return std::nullopt;
}

}  // namespace acc::sharding
