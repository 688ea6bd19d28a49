#pragma once

#include "device/backend.hpp"

namespace acc::device {

/// Where this rank computes.
struct Opened {
  DevicePtr device;
  Backend* backend = nullptr;  ///< null on the CPU; lives as long as the process
};

/// The CPU, or GPU number local_rank (modulo their number where GPUs may be shared). Throws
/// Error(device) that says in one sentence what is missing: this library's CUDA half, the driver,
/// a driver that is new enough, a GPU for every worker of this machine.
Opened open_device(const plugins::RuntimeSettings& settings);

}  // namespace acc::device
