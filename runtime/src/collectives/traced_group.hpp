// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

#include <memory>

namespace acc::collectives {

/// Wraps `inner` so that each of its collectives becomes a span in the device's timeline, from its
/// issue to the end of its wait on the calling thread. For groups on host memory. Groups on a GPU
/// report the exact times from events on their streams and are not wrapped.
std::shared_ptr<ProcessGroup> trace_group(std::shared_ptr<ProcessGroup> inner,
                                          device::DevicePtr device);

}  // namespace acc::collectives
