#pragma once

#include "device/device.hpp"

#include <cstdint>
#include <vector>

namespace acc::sharding {

/// float32 values of a device as the host sees them: themselves where they lie in host memory (the
/// CPU's), else a copy: taken on construction, or zeros for who writes all but the gaps between
/// parameters, which are zero anyway.
class HostArray {
 public:
  enum class Copy { of_values, of_zeros };

  /// values: [numel], memory of `device`, alive as long as this.
  HostArray(device::Device& device, float* values, std::int64_t numel, Copy copy)
      : device_(&device), values_(values) {
    if (device.kind() == plugins::Device::cpu) {
      return;
    }
    copy_.resize(static_cast<std::size_t>(numel));
    if (copy == Copy::of_zeros) {
      return;
    }
    device.copy(copy_.data(), values, copy_.size() * sizeof(float), device.compute());
    device.record(device.compute())->synchronize();
  }

  [[nodiscard]] float* data() noexcept { return copy_.empty() ? values_ : copy_.data(); }
  /// Brings changes to the device.
  void write_back() {
    if (!copy_.empty()) {
      device_->copy(values_, copy_.data(), copy_.size() * sizeof(float), device_->compute());
      device_->record(device_->compute())->synchronize();
    }
  }

 private:
  device::Device* device_;
  float* values_;
  std::vector<float> copy_;
};

}  // namespace acc::sharding
