// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "flight/recorder.hpp"

#include <memory>
#include <string_view>
#include <vector>

namespace acc::collectives {

/// Wraps `inner` so that each of its collectives is written to the flight record, under the group
/// name `name`, and so that the error of a failed collective says for which unit and phase it ran.
/// This is the outermost wrapper of a group. On a GPU, a collective counts as done when
/// `Work::wait` returns, which is before it has run on the device.
std::shared_ptr<ProcessGroup> record_group(std::shared_ptr<ProcessGroup> inner,
                                           std::shared_ptr<flight::Recorder> recorder,
                                           std::string_view name, const std::vector<int>& ranks);

}  // namespace acc::collectives
