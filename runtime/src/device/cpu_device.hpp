#pragma once

#include "device/device.hpp"

namespace acc::device {

/// The CPU as a device: every call does its work before it returns.
DevicePtr open_cpu_device();

}  // namespace acc::device
