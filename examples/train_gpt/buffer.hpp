#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace train_gpt {

/// A fixed number of floats, zero at first, aligned to a cache line. Activations live in these,
/// allocated once before training.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t count)
      : data_(new (std::align_val_t{kAlignment}) float[static_cast<std::size_t>(count)]()) {}

  [[nodiscard]] float* data() const { return data_.get(); }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Delete {
    void operator()(float* data) const { operator delete[](data, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<float[], Delete> data_;
};

}  // namespace train_gpt
