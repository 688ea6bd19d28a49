#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <string>

namespace acc::launcher {

/// Every setting with its value and source as an aligned table, then the layout of the ranks, what
/// is sharded and the workers' command: what `acclaunch explain` prints.
std::string explain(const LaunchPlan& plan);

/// Markdown tables made from the settings table: docs/environment.md and docs/configuration.md.
std::string environment_document();
std::string configuration_document();

}  // namespace acc::launcher
