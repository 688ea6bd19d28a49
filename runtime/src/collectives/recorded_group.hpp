#pragma once

#include "acc/collectives/process_group.hpp"
#include "flight/recorder.hpp"

#include <memory>
#include <string_view>
#include <vector>

namespace acc::collectives {

/// Tells `recorder` of each collective of `inner`, under `name`, and says in the error of one that
/// fails what it was for. The outermost of what is put around a group. On a GPU a collective counts
/// as done when the host need not wait for it.
std::shared_ptr<ProcessGroup> record_group(std::shared_ptr<ProcessGroup> inner,
                                           std::shared_ptr<flight::Recorder> recorder,
                                           std::string_view name, const std::vector<int>& ranks);

}  // namespace acc::collectives
