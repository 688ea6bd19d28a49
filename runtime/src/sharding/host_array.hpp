// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <cstdint>
#include <vector>

namespace acc::sharding {

/// A float32 view in host memory of an array of a device. float32 values that the host can use are
/// used directly; other values are copied, and `write_back` copies them to the device.
class HostArray {
 public:
  /// Initial content of a copy: the values, or zeros for a caller that writes all elements except
  /// the gaps between parameters, which are zero anyway.
  enum class Copy { of_values, of_zeros };

  /// values: [numel] of `dtype` (float32, bfloat16 or float16), memory of `device`; outlives this.
  HostArray(device::Device& device, void* values, DType dtype, std::int64_t numel, Copy copy)
      : device_(&device),
        values_(values),
        dtype_(dtype),
        itself_(dtype == DType::float32 && on_host()) {
    if (itself_) {
      return;
    }
    copy_.resize(static_cast<std::size_t>(numel));
    if (copy == Copy::of_values) {
      read();
    }
  }

  [[nodiscard]] float* data() noexcept {
    return itself_ ? static_cast<float*>(values_) : copy_.data();
  }
  /// Writes changes to the device, rounded to nearest even.
  void write_back() {
    if (itself_) {
      return;
    }
    if (on_host()) {
      kernels::cast(copy_.data(), DType::float32, values_, dtype_, copy_.size());
      return;
    }
    std::vector<std::byte> rounded(copy_.size() * nbytes_of(dtype_));
    kernels::cast(copy_.data(), DType::float32, rounded.data(), dtype_, copy_.size());
    transfer(values_, rounded.data(), rounded.size());
  }

 private:
  [[nodiscard]] bool on_host() const { return device_->host_can_use(values_); }

  void read() {
    if (on_host()) {
      kernels::cast(values_, dtype_, copy_.data(), DType::float32, copy_.size());
      return;
    }
    std::vector<std::byte> stored(copy_.size() * nbytes_of(dtype_));
    transfer(stored.data(), values_, stored.size());
    kernels::cast(stored.data(), dtype_, copy_.data(), DType::float32, copy_.size());
  }

  void transfer(void* to, const void* from, std::size_t nbytes) {
    device_->copy(to, from, nbytes, device_->compute());
    device_->record(device_->compute())->synchronize();
  }

  device::Device* device_;
  void* values_;
  DType dtype_;
  bool itself_;  ///< `values_` are used directly, without a copy
  std::vector<float> copy_;
};

}  // namespace acc::sharding
