// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

// nlohmann's parser and writer, compiled once. A source file that calls them itself takes 1 to 3 s
// longer to compile.
namespace acc {

/// nlohmann::basic_json::parse, with the same defaults and errors. Json: nlohmann::json or
/// nlohmann::ordered_json.
template <class Json>
Json json_from_text(std::string_view text,
                    const typename Json::parser_callback_t& callback = nullptr,
                    bool allow_exceptions = true);

/// Message of an exception of nlohmann/json, without the exception's name and number.
std::string text_of_fault(const nlohmann::json::exception& error);

/// True if the text is one JSON value.
bool is_json(std::string_view text);

/// nlohmann::basic_json::dump, with the same defaults and errors.
template <class Json>
std::string text_of_json(
    const Json& value, int indent = -1, char indent_char = ' ', bool ensure_ascii = false,
    nlohmann::json::error_handler_t on_invalid = nlohmann::json::error_handler_t::strict);

/// The same; bytes that are not UTF-8 are replaced by U+FFFD.
template <class Json>
std::string lossy_text_of_json(const Json& value, int indent = -1) {
  return text_of_json(value, indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A text as a JSON string. Bytes that are not UTF-8 are replaced by U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace acc
