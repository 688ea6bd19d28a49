#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>
#include <vector>

namespace acc::launcher {

/// The flags about supervision and output that every face has besides its original's own.
std::span<const plugins::SettingRow> common_rows() noexcept;

/// The rows of a face, then the common ones.
std::vector<plugins::SettingRow> with_common_rows(std::span<const plugins::SettingRow> rows);

}  // namespace acc::launcher
