// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <string>
#include <string_view>

namespace acc::launcher {

/// Returns the text of `acclaunch explain`: every setting with its value and source, the rank
/// layout, the rendezvous, GPUs and cores, output files, the workers' command, and the variables
/// that the workers get in addition to `parent`, this process's environment.
std::string explain(const LaunchPlan& plan, const settings::Environment& parent);

/// Returns the same as one JSON object, described in docs/explain.md. The front end is named
/// `front_end`.
std::string explain_json(std::string_view front_end, const LaunchPlan& plan,
                         const settings::Environment& parent);

/// Returns the JSON object for a command line that was rejected with this error message.
std::string explain_refusal_json(std::string_view front_end, const std::string& message);

/// Return the tables in docs/environment.md and docs/configuration.md, in Markdown.
std::vector<std::string> environment_tables();
std::vector<std::string> configuration_tables();

}  // namespace acc::launcher
