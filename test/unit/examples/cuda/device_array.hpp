// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace train_gpt::cuda {

inline float widened(float value) {
  return value;
}
inline float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
inline float widened(__half value) {
  return __half2float(value);
}
inline float widened(double value) {
  return static_cast<float>(value);
}
inline void assign(float& to, float value) {
  to = value;
}
inline void assign(double& to, float value) {
  to = value;
}
inline void assign(__nv_bfloat16& to, float value) {
  to = __float2bfloat16_rn(value);
}
inline void assign(__half& to, float value) {
  to = __float2half_rn(value);
}

/// Returns numbers rounded to T and back to fp32.
template <class T>
std::vector<float> rounded(std::vector<float> values) {
  for (float& value : values) {
    T kept{};
    assign(kept, value);
    value = widened(kept);
  }
  return values;
}

/// Copies pageable host memory to the GPU. cudaMemcpy may return before the copy on the GPU has
/// ended, and non-blocking streams do not wait for it ("API synchronization behavior" in CUDA's
/// runtime API reference).
inline void copy_to_device(void* to, const void* from, std::size_t nbytes) {
  check(cudaMemcpy(to, from, nbytes, cudaMemcpyHostToDevice), "a copy");
  check(cudaDeviceSynchronize(), "a copy");
}

/// An array of T on the GPU. Written from and read into fp32.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<float>& values) : DeviceArray(values.size()) {
    std::vector<T> typed(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      assign(typed[i], values[i]);
    }
    copy_to_device(data(), typed.data(), count_ * sizeof(T));
  }
  /// Allocates an array filled with NaN, so that a kernel that leaves elements out is noticed.
  explicit DeviceArray(std::size_t count)
      : count_(count), buffer_(static_cast<std::int64_t>(count), "a test") {
    check(cudaMemset(data(), 0xff, count * sizeof(T)), "a fill");
    // cudaMemset may return before it has finished, and non-blocking streams do not wait for it.
    check(cudaDeviceSynchronize(), "a fill");
  }

  [[nodiscard]] T* data() const { return buffer_.data(); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::vector<float> read() const {
    check(cudaDeviceSynchronize(), "a test");
    std::vector<T> typed(count_);
    check(cudaMemcpy(typed.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "a copy");
    std::vector<float> values;
    for (const T& value : typed) {
      values.push_back(widened(value));
    }
    return values;
  }

 private:
  std::size_t count_;
  DeviceBuffer<T> buffer_;
};

inline DeviceBuffer<std::int32_t> device_integers(const std::vector<std::int32_t>& values) {
  DeviceBuffer<std::int32_t> buffer(static_cast<std::int64_t>(values.size()), "a test");
  copy_to_device(buffer.data(), values.data(), values.size() * sizeof(std::int32_t));
  return buffer;
}

class TestStream {
 public:
  TestStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Returns the largest |got - expected| / (unit + |expected|). Covers the rounding of T and the
/// error of sums in fp32. NaN counts as a very large difference.
template <class T>
double worst_error(const std::vector<float>& got, const std::vector<double>& expected,
                   double unit = 1.0) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    const double relative = error / (unit + std::abs(expected[i]));
    worst = std::isnan(relative) ? 1e30 : std::max(worst, relative);
  }
  return worst;
}

/// Tolerance for one rounding to T, with some margin for the sums before it.
template <class T>
constexpr double kTolerance = sizeof(T) == 2 ? 0.0045 : 3e-6;

}  // namespace train_gpt::cuda
