// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

namespace acc::cuda {

/// Opens GPU number `index`, which must exist. Its streams are not synchronized with the default
/// stream. Streams of `make_stream` have the highest priority and the compute stream the lowest, so
/// that copies and communication are not delayed by the program's kernels.
device::DevicePtr open_cuda_device(int index);

}  // namespace acc::cuda
