// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

#include <string>

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

/// Throws Error(not_supported): groups on memory of GPUs are not made anew in a running process.
[[noreturn]] inline void refuse_renewal(const std::string& group) {
  throw Error(
      Errc::not_supported,
      group + ": ranks on GPUs cannot rejoin a job in this version; start without --rejoin");
}

// Purposes under which this memory appears in memory reports and out-of-memory messages.
inline constexpr const char* kGatheredMemory = "gathered weights";
inline constexpr const char* kContributionMemory = "shards and gradients";

}  // namespace acc::collectives
