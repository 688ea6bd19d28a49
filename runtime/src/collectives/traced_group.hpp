#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

#include <memory>

namespace acc::collectives {

/// Tells the device's timeline from when to when each collective of `inner` was under way, as far
/// as the calling thread sees it: from issue to the end of its wait. For groups on host memory;
/// those on a GPU know better and tell it themselves.
std::shared_ptr<ProcessGroup> trace_group(std::shared_ptr<ProcessGroup> inner,
                                          device::DevicePtr device);

}  // namespace acc::collectives
