// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

namespace acc::device {

/// Opens the CPU as a device: every call does its work before it returns. `threads` is the number
/// of threads that share the loops of the optimizer. Results do not depend on it.
DevicePtr open_cpu_device(int threads = 1);

}  // namespace acc::device
