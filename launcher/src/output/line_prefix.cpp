// SPDX-License-Identifier: Apache-2.0
#include "output/line_prefix.hpp"

#include "acc/base/text.hpp"

#include <algorithm>
#include <map>

namespace acc::launcher::output {
namespace {

/// A macro at the beginning of a text: `$name`, `${name}` or `$$`. If there is none, `name` is
/// empty and the length is that of one ordinary byte.
struct Macro {
  std::string_view name;
  std::size_t length = 1;  ///< bytes of the text that it takes
};

Macro first_macro(std::string_view text) {
  if (!text.starts_with('$')) {
    return {};
  }
  if (text.starts_with("$$")) {
    return {"$", 2};
  }
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_";
  const bool braced = text.starts_with("${");
  const std::string_view rest = text.substr(braced ? 2 : 1);
  const std::size_t length = std::min(rest.find_first_not_of(kLetters), rest.size());
  if (braced && !rest.substr(length).starts_with('}')) {
    return {};
  }
  return {rest.substr(0, length), 1 + length + (braced ? 2 : 0)};
}

}  // namespace

std::string line_prefix(std::string_view pattern, const LineSource& source, int num_machines) {
  if (pattern.empty()) {
    pattern = num_machines > 1 ? "[${host} ${rank}] " : "[${rank}] ";
  }
  const std::map<std::string_view, std::string> values = {
      {"$", "$"},
      {"role_name", source.role_name},
      {"rank", std::to_string(source.rank)},
      {"local_rank", std::to_string(source.local_rank)},
      {"host", source.host},
  };
  std::string prefix;
  while (!pattern.empty()) {
    const Macro macro = first_macro(pattern);
    const auto value = values.find(macro.name);
    prefix.append(value == values.end() ? pattern.substr(0, macro.length)
                                        : std::string_view(value->second));
    pattern.remove_prefix(macro.length);
  }
  return prefix;
}

std::string prefix_of_ranks(const std::vector<int>& ranks) {
  return "[" + number_list(ranks) + "] ";
}

}  // namespace acc::launcher::output
