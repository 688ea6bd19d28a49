#pragma once

#include "device/device.hpp"

namespace acc::device {

/// The CPU as a device: every call does its work before it returns. With several `threads` the
/// optimizer's loops are divided among them; results do not depend on how many, but for the norm,
/// whose order of summation one thread chooses differently from several.
DevicePtr open_cpu_device(int threads = 1);

}  // namespace acc::device
