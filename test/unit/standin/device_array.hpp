// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace standin_test {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(cudaGetErrorName(error));
  }
}

/// An array in device memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t numel) : numel_(numel) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, numel * sizeof(T)));
    data_ = static_cast<T*>(memory);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());  // non-blocking streams do not wait for the copy
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] T* data() const { return data_; }
  /// Returns the elements after all work of the device is complete.
  [[nodiscard]] std::vector<T> read() const {
    check(cudaDeviceSynchronize());
    std::vector<T> values(numel_);
    check(cudaMemcpy(values.data(), data_, numel_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t numel_;
  T* data_ = nullptr;
};

}  // namespace standin_test
