#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>

namespace acc::launcher {

/// The flags of torchrun (PyTorch 2.13); `environment` is the variable that stands in for one.
std::span<const plugins::SettingRow> torchrun_table() noexcept;

}  // namespace acc::launcher
