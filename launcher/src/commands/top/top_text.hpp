// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/top/watched_job.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands {

struct TopLook {
  double now = 0.0;           ///< seconds since 1970
  std::size_t width = 0;      ///< columns of the screen; 0: any
  std::size_t max_ranks = 0;  ///< ranks of a job that are listed; 0: all
  bool slowest_first = false;
  bool styled = false;    ///< with bold (ECMA-48 SGR)
  bool coloured = false;  ///< and colours
};

/// Returns the lines of the display: a table of the jobs, and for each job its ranks. If the width
/// is not enough, names are cut first, and then the least important columns are left out. Texts are
/// made printable.
std::vector<std::string> top_lines(std::span<const WatchedJob> jobs, const TopLook& look);

/// Returns the number of columns that a terminal needs for UTF-8 text without escape sequences.
std::size_t columns_of(const std::string& text);

}  // namespace acc::launcher::commands
