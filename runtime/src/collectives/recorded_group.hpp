// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"
#include "flight/recorder.hpp"

#include <memory>
#include <string_view>
#include <vector>

namespace acc::collectives {

/// Wraps `inner` so that each of its collectives is written to the flight record, under the group
/// name `name`, and so that the error of a failed collective says for which unit and phase it ran.
/// This is the outermost wrapper of a group. On a GPU, a collective counts as done when
/// `Work::wait` returns, which is before it has run on the device. With `traced`, each collective
/// also becomes a span in the timeline of this device, from its issue to the end of its wait on the
/// calling thread: for groups on host memory, because those on a GPU report the exact times from
/// events on their streams.
std::shared_ptr<ProcessGroup> record_group(std::shared_ptr<ProcessGroup> inner,
                                           std::shared_ptr<flight::Recorder> recorder,
                                           std::string_view name, const std::vector<int>& ranks,
                                           device::DevicePtr traced = nullptr);

/// Ends the group inside `recorded`, which `record_group` has made: every call, also of works that
/// it has issued, throws Error(peer_lost).
void give_up_group(ProcessGroup& recorded);
/// Ends the group inside `recorded` likewise, and replaces it by `inner`, a group of `ranks`.
void replace_group(ProcessGroup& recorded, std::shared_ptr<ProcessGroup> inner,
                   const std::vector<int>& ranks);

}  // namespace acc::collectives
