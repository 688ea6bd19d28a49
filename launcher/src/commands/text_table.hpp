// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::commands {

/// Returns the rows, which have equally many cells, as lines whose columns are two blanks apart.
/// `alignment`: '<' (left) or '>' (right) for each column; further columns are aligned like the
/// last one. Widths are in bytes; a cell of more than `widest` shifts only its own row.
std::string text_table(const std::vector<std::vector<std::string>>& rows,
                       std::string_view alignment, std::size_t widest = SIZE_MAX);

}  // namespace acc::launcher::commands
