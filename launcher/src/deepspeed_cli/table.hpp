#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>

namespace acc::launcher {

/// Returns the flags of the deepspeed launcher (0.19.8), acclaunch's --deepspeed_config, and the
/// rows common to all front ends.
std::span<const plugins::SettingRow> deepspeed_table() noexcept;

}  // namespace acc::launcher
