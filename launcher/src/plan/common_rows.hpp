// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>
#include <vector>

namespace acc::launcher::plan {

/// Returns the rows of a front end's own table, followed by those that every front end has. A key
/// of the own table is not repeated.
std::vector<plugins::SettingRow> with_common_rows(std::span<const plugins::SettingRow> rows);

}  // namespace acc::launcher::plan
