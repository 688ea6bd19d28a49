// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"

#include <span>

namespace acc::launcher::torchrun_cli {

/// Returns torchrun's flags (PyTorch 2.13) and the rows common to all front ends.
/// `SettingRow::environment` is the variable that is read if the flag is not given.
std::span<const plugins::SettingRow> torchrun_table() noexcept;

/// FrontEnd::plan of the torchrun front end. Each value comes from the flag, else from the variable
/// PET_<FLAG>, else from the default.
LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts);

}  // namespace acc::launcher::torchrun_cli
