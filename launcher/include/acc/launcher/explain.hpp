#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <string>
#include <string_view>

namespace acc::launcher {

/// What `acclaunch explain` prints: every setting with its value and source, the layout of the
/// ranks, where they meet, run and write, their command, and what they get that `parent` has not.
std::string explain(const LaunchPlan& plan, const plugins::Environment& parent);

/// The same as one JSON object; docs/explain.md describes it.
std::string explain_json(std::string_view face, const LaunchPlan& plan,
                         const plugins::Environment& parent);

/// The object for a plan that was refused with this message.
std::string explain_refusal_json(std::string_view face, const std::string& message);

/// Markdown tables made from the settings table: docs/environment.md and docs/configuration.md.
std::string environment_document();
std::string configuration_document();

}  // namespace acc::launcher
