// SPDX-License-Identifier: Apache-2.0
#include "model/unit_values.hpp"

#include "model/kernels.hpp"

#include <algorithm>

namespace train_gpt {

float* FloatGradient::to_add() {
  if (next_beta() == 0.0f) {
    std::fill_n(data_, count_, 0.0f);
  }
  return data_;
}

void UnitValues::begin() {
  used_ = 0;
  gradients_.clear();
}

// Slots are reused by every scope in the same order, so after the first step there are no
// allocations.
float* UnitValues::next_slot(std::int64_t count) {
  if (used_ == slots_.size()) {
    slots_.emplace_back();
  }
  Slot& slot = slots_[used_++];
  if (slot.count < count) {
    slot = {Buffer(count), count};
  }
  return slot.buffer.data();
}

const float* UnitValues::widened(const void* values, std::int64_t count) {
  float* const slot = next_slot(count);
  widen(static_cast<const Bf16*>(values), slot, count);
  return slot;
}

void UnitValues::add_row(float* out, const Weight& table, std::int64_t row) const {
  const std::int64_t first = row * table.cols;
  if (is_float_) {
    add(out, static_cast<const float*>(table.data) + first, table.cols);
  } else {
    add_widened(out, static_cast<const Bf16*>(table.data) + first, table.cols);
  }
}

FloatGradient UnitValues::gradient(acc::BackwardUse& use, acc::Parameter parameter,
                                   std::int64_t count) {
  if (is_float_) {
    const acc::Gradient place = use.grad(parameter);
    return {place.data, count, place.beta};
  }
  gradients_.emplace_back(parameter, FloatGradient(next_slot(count), count, 0.0f));
  return gradients_.back().second;
}

void UnitValues::finish(acc::BackwardUse& use) {
  for (const auto& [parameter, gradient] : gradients_) {
    const acc::RawGradient place = use.raw_grad(parameter);
    auto* const out = static_cast<Bf16*>(place.data);
    if (place.beta == 0.0f) {
      narrow(gradient.data(), out, gradient.count());
    } else {
      add_narrowed(out, gradient.data(), gradient.count());
    }
  }
  gradients_.clear();
}

}  // namespace train_gpt
