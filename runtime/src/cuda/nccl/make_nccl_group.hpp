// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/group_spec.hpp"
#include "device/device.hpp"

#include <memory>

namespace acc::cuda {

/// See `device::Backend::make_nccl_group`.
std::shared_ptr<collectives::ProcessGroup> make_nccl_group(
    const collectives::GroupSpec& spec, std::shared_ptr<collectives::ProcessGroup> host,
    device::DevicePtr device, collectives::ProcessGroup* parent, int color,
    const settings::NcclOptions& options);

}  // namespace acc::cuda
