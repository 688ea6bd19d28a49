// SPDX-License-Identifier: Apache-2.0
#include "commands/text_table.hpp"

#include <algorithm>

namespace acc::launcher::commands {

std::string text_table(const std::vector<std::vector<std::string>>& rows,
                       std::string_view alignment, std::size_t widest) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(row.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], std::min(row[i].size(), widest));
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(std::max(widths[i], row[i].size()) - row[i].size(), ' ');
      const bool right = alignment[std::min(i, alignment.size() - 1)] == '>';
      line += (i == 0 ? "" : "  ") + (right ? blanks + row[i] : row[i] + blanks);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace acc::launcher::commands
