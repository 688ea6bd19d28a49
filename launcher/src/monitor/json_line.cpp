// SPDX-License-Identifier: Apache-2.0
#include "monitor/json_line.hpp"

#include "acc/base/json.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace acc::launcher::monitor {
namespace {

using Json = nlohmann::json;

/// Replaces NaN, Infinity and -Infinity outside of strings by null.
std::string without_python_numbers(std::string_view line) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "-Infinity", "Infinity"};
  std::string text;
  bool in_string = false;
  for (std::size_t i = 0; i < line.size();) {
    const std::string_view rest = line.substr(i);
    const auto* const word = std::ranges::find_if(
        kWords, [&](std::string_view each) { return !in_string && rest.starts_with(each); });
    if (word != kWords.end()) {
      text += "null";
      i += word->size();
      continue;
    }
    if (in_string && rest.front() == '\\' && rest.size() > 1) {
      text += rest.substr(0, 2);
      i += 2;
      continue;
    }
    in_string ^= rest.front() == '"';
    text += rest.front();
    ++i;
  }
  return text;
}

}  // namespace

Json json_line(const std::string& line) {
  Json object = json_from_text<Json>(line, nullptr, false);
  if (object.is_discarded()) {
    object = json_from_text<Json>(without_python_numbers(line), nullptr, false);
  }
  return object.is_object() ? object : Json(Json::value_t::discarded);
}

}  // namespace acc::launcher::monitor
