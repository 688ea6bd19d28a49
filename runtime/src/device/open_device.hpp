// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.hpp"

namespace acc::device {

/// Device of this rank, with the library that it comes from.
struct Opened {
  DevicePtr device;
  Backend* backend = nullptr;  ///< null on the CPU; never unloaded
};

/// Opens the device that the settings ask for: the CPU, or GPU number local_rank (modulo the number
/// of GPUs if ranks may share them). Throws Error(device) if libacc_cuda.so, the driver, a new
/// enough driver, or a GPU for each worker of this machine is missing; the message says which.
Opened open_device(const settings::RuntimeSettings& settings);

}  // namespace acc::device
