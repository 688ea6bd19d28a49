// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <string>
#include <utility>
#include <vector>

namespace acc::launcher::plan {

/// Returns the terms that must be equal on all machines of the job, besides the counts: the
/// program's file or module and its arguments, the device, and the settings that determine the
/// sharding, in canonical spelling. Pairs of the name used in messages and the value. GPUs, cores,
/// hosts and the paths of the program and its interpreter may differ between machines and are not
/// included.
std::vector<std::pair<std::string, std::string>> agreed_terms(const LaunchPlan& plan);

}  // namespace acc::launcher::plan
