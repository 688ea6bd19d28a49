#pragma once

#include "device/device.hpp"

namespace acc::cuda {

/// GPU number `index`, which is there. Its streams do not wait for the default stream, nor it for
/// them; those of `make_stream` go before the compute stream where multiprocessors are short.
device::DevicePtr open_cuda_device(int index);

}  // namespace acc::cuda
