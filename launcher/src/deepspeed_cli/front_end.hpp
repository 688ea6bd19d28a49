// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"

#include <span>

namespace acc::launcher::deepspeed_cli {

/// Returns the flags of the deepspeed launcher (0.19.8), acclaunch's --deepspeed_config, and the
/// rows common to all front ends.
std::span<const plugins::SettingRow> deepspeed_table() noexcept;

/// FrontEnd::plan of the deepspeed front end.
LaunchPlan plan_deepspeed(const Flags& flags, const plugins::Environment& environment,
                          const HostFacts& facts);

}  // namespace acc::launcher::deepspeed_cli
