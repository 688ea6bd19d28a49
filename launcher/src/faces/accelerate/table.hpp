#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>

namespace acc::launcher {

/// The settings of Accelerate's configuration and ours, then the rows that all faces share.
std::span<const plugins::SettingRow> accelerate_table() noexcept;

}  // namespace acc::launcher
