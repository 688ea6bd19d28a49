#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>

namespace acc::launcher {

/// The flags of the deepspeed launcher (0.19.8), and our --deepspeed_config.
std::span<const plugins::SettingRow> deepspeed_table() noexcept;

}  // namespace acc::launcher
