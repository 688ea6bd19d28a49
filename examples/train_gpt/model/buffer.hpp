// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace train_gpt {

/// A fixed number of floats, initialised to zero and aligned to a cache line. Holds activations;
/// allocated once before training.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t count)
      : data_(new (std::align_val_t{kAlignment}) float[static_cast<std::size_t>(count)]()),
        count_(count) {}

  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t nbytes() const {
    return count_ * static_cast<std::int64_t>(sizeof(float));
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Delete {
    void operator()(float* data) const { operator delete[](data, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<float[], Delete> data_;
  std::int64_t count_ = 0;
};

}  // namespace train_gpt
