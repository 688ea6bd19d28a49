// SPDX-License-Identifier: Apache-2.0
#include "sharding/gradient/written_gradient.hpp"

#include <algorithm>

namespace acc::sharding {

void WrittenGradient::open_scratch() {
  own_ = scratch_.acquire(static_cast<std::size_t>(layout_.padded_numel) *
                          nbytes_of(layout_.precision.viewed));
  data_ = own_->data();
}

void WrittenGradient::close() {
  if (own_) {
    scratch_.release(std::move(own_));
  }
  data_ = nullptr;
}

std::byte* WrittenGradient::at(std::int64_t offset) const {
  return data_ + static_cast<std::size_t>(offset) * nbytes_of(layout_.precision.viewed);
}

WrittenGradient::Target WrittenGradient::target(std::size_t index) {
  const Target target{at(layout_.offsets[index]), is_written_[index]};
  is_written_[index] = true;
  return target;
}

const std::byte* WrittenGradient::values(std::size_t index) const {
  return is_open() && is_written_[index] ? at(layout_.offsets[index]) : nullptr;
}

void WrittenGradient::zero_unwritten() {
  const std::size_t width = nbytes_of(layout_.precision.viewed);
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) {
      context_.device->zero(at(begin), static_cast<std::size_t>(end - begin) * width,
                            context_.device->compute());
    }
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < layout_.numels.size(); ++i) {
    zero(end, layout_.offsets[i]);  // the gap before this parameter
    end = layout_.offsets[i] + layout_.numels[i];
    if (!is_written_[i]) {
      zero(layout_.offsets[i], end);
    }
  }
  zero(end, layout_.padded_numel);
  forget();
}

void WrittenGradient::forget() {
  std::fill(is_written_.begin(), is_written_.end(), false);
}

}  // namespace acc::sharding
