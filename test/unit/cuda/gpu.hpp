// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/open_device.hpp"

#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace acc::test {

/// The GPU under test: a real one, or the stand-in that ACC_CUDA_BACKEND selects.
inline device::Opened open_gpu(int local_rank = 0) {
  settings::RuntimeSettings settings;
  settings.device = settings::Device::cuda;
  settings.identity.local_rank = local_rank;
  settings.identity.local_world_size = local_rank + 1;
  return device::open_device(settings);
}

inline std::vector<float> random_values(std::size_t numel, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(numel);
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

/// Copies `values` to memory of `device`, `offset` elements after an aligned address.
template <typename T>
class OnDevice {
 public:
  OnDevice(device::Device& device, const std::vector<T>& values, std::size_t offset = 0)
      : device_(device),
        memory_(device.allocate((offset + values.size()) * sizeof(T), "test values")),
        offset_(offset),
        numel_(values.size()) {
    device_.copy(data(), values.data(), numel_ * sizeof(T), device_.compute());
    device_.synchronize();
  }
  [[nodiscard]] T* data() const { return memory_->template as<T>() + offset_; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(numel_);
    device_.synchronize();
    device_.copy(result.data(), data(), numel_ * sizeof(T), device_.compute());
    device_.synchronize();
    return result;
  }

 private:
  device::Device& device_;
  device::MemoryPtr memory_;
  std::size_t offset_;
  std::size_t numel_;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace acc::test
