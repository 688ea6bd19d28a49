#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>

namespace acc::launcher {

/// Returns torchrun's flags (PyTorch 2.13) and the rows common to all front ends.
/// `SettingRow::environment` is the variable that is read if the flag is not given.
std::span<const plugins::SettingRow> torchrun_table() noexcept;

}  // namespace acc::launcher
