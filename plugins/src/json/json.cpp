// SPDX-License-Identifier: Apache-2.0
#include "acc/base/json.hpp"

#include <algorithm>

namespace acc {

template <class Json>
Json json_from_text(std::string_view text, const typename Json::parser_callback_t& callback,
                    bool allow_exceptions) {
  return Json::parse(text.begin(), text.end(), callback, allow_exceptions);
}

std::string text_of_fault(const nlohmann::json::exception& error) {
  const std::string_view text = error.what();
  const auto end = text.find("] ");  // of "[json.exception.parse_error.101] "
  return std::string(text.substr(end == std::string_view::npos ? 0 : end + 2));
}

bool is_json(std::string_view text) {
  return nlohmann::json::accept(text.begin(), text.end());
}

template <class Json>
std::string text_of_json(const Json& value, int indent, char indent_char, bool ensure_ascii,
                         nlohmann::json::error_handler_t on_invalid) {
  return value.dump(indent, indent_char, ensure_ascii, on_invalid);
}

std::string json_quoted(std::string_view text) {
  const bool is_plain = std::ranges::all_of(
      text, [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  return is_plain ? '"' + std::string(text) + '"' : lossy_text_of_json(nlohmann::json(text));
}

using Map = nlohmann::json;
using OrderedMap = nlohmann::ordered_json;
template Map json_from_text(std::string_view, const Map::parser_callback_t&, bool);
template OrderedMap json_from_text(std::string_view, const OrderedMap::parser_callback_t&, bool);
template std::string text_of_json(const Map&, int, char, bool, Map::error_handler_t);
template std::string text_of_json(const OrderedMap&, int, char, bool, Map::error_handler_t);

}  // namespace acc
