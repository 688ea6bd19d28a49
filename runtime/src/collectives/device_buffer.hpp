// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

namespace acc::collectives {

/// Group memory on the rank's own device, which other ranks do not map. Holds the device memory
/// until the last reference to the buffer is released.
class DeviceBuffer final : public GroupBuffer {
 public:
  explicit DeviceBuffer(device::MemoryPtr memory) : memory_(std::move(memory)) {
    data_ = memory_->data();
    nbytes_ = memory_->nbytes();
  }

 private:
  device::MemoryPtr memory_;
};

// Purposes under which this memory appears in memory reports and out-of-memory messages.
inline constexpr const char* kGatheredMemory = "gathered weights";
inline constexpr const char* kContributionMemory = "shards and gradients";

}  // namespace acc::collectives
