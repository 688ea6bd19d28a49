#include "output/line_prefix.hpp"

#include "acc/base/text.hpp"

#include <array>
#include <utility>

namespace acc::launcher {

std::string line_prefix(std::string_view pattern, const LineSource& source, int num_machines) {
  if (pattern.empty()) {
    pattern = num_machines > 1 ? "[${host} ${rank}] " : "[${rank}] ";
  }
  const std::array<std::pair<std::string_view, std::string>, 4> macros = {{
      {"${role_name}", source.role_name},
      {"${rank}", std::to_string(source.rank)},
      {"${local_rank}", std::to_string(source.local_rank)},
      {"${host}", source.host},
  }};
  std::string prefix;
  while (!pattern.empty()) {
    std::size_t taken = 1;
    std::string_view text = pattern.substr(0, 1);
    for (const auto& [macro, value] : macros) {
      if (pattern.starts_with(macro)) {
        taken = macro.size();
        text = value;
      }
    }
    prefix.append(text);
    pattern.remove_prefix(taken);
  }
  return prefix;
}

std::string prefix_of_ranks(const std::vector<int>& ranks) {
  return "[" + number_list(ranks) + "] ";
}

}  // namespace acc::launcher
