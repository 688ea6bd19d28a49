#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

namespace acc::collectives {

/// Group memory that only its own rank sees, on the rank's device.
class DeviceBuffer final : public GroupBuffer {
 public:
  explicit DeviceBuffer(device::MemoryPtr memory) : memory_(std::move(memory)) {
    data_ = memory_->data();
    nbytes_ = memory_->nbytes();
  }

 private:
  device::MemoryPtr memory_;
};

inline constexpr const char* kGatheredMemory = "gathered weights";
inline constexpr const char* kContributionMemory = "shards and gradients";

}  // namespace acc::collectives
