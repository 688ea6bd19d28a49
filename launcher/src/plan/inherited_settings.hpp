// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/draft.hpp"

#include <set>
#include <string>

namespace acc::launcher::plan {

/// Settings of workers whose front end has no flags for sharding.
struct InheritedSettings {
  settings::Device device = settings::Device::cpu;
  Mode mode = Mode::plain;
  settings::ShardingSettings sharding{};
  WorkerVariables variables{};  ///< with ACC_DEVICE
};

/// Returns device, mode and sharding as the workers will read them from the inherited environment,
/// which the user or an outer acclaunch has set. The device is ACC_DEVICE, else `cuda` if GPUs are
/// visible. Values that the workers could not read become a notice.
InheritedSettings inherit_settings(Draft& draft, Identity identity, const RankLayout& layout,
                                   WorkerVariables variables, bool gpus_are_visible);

/// Returns the names of the ACC_* settings, which an outer acclaunch may have set for its own
/// workers.
std::set<std::string> names_of_settings();

}  // namespace acc::launcher::plan
