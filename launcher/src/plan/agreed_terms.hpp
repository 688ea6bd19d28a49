#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <string>
#include <utility>
#include <vector>

namespace acc::launcher {

/// What the other machines of the job must have been told alike, besides counts: the program's file
/// or module, the device, and the settings by which the ranks shard their state, in one spelling.
/// By the name that a message gives it. What may differ from machine to machine is not in it:
/// paths, GPUs, cores, the program's arguments, hosts.
std::vector<std::pair<std::string, std::string>> agreed_terms(const LaunchPlan& plan);

}  // namespace acc::launcher
