#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>

namespace acc::launcher {

/// Returns the settings of Accelerate's configuration and of acclaunch, followed by the rows that
/// all front ends share.
std::span<const plugins::SettingRow> accelerate_table() noexcept;

}  // namespace acc::launcher
