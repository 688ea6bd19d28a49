#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>
#include <vector>

namespace acc::launcher {

/// The rows of a face, then those about supervision and output that every face has besides its
/// original's own.
std::vector<plugins::SettingRow> with_common_rows(std::span<const plugins::SettingRow> rows);

}  // namespace acc::launcher
