// SPDX-License-Identifier: Apache-2.0
// Python's view of YAML scalars. documents::Node keeps a scalar's text; PyYAML (YAML 1.1,
// SafeLoader) decides by regular expressions whether a bare word is an int, a float or a string,
// and Accelerate then applies str(), bool() or comparisons to it. These functions repeat those
// rules.
#include "accelerate_cli/python_values.hpp"

#include "acc/settings/settings.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace acc::launcher::accelerate_cli::python {
namespace {

bool all_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

std::string_view without_sign(std::string_view text) {
  return text.starts_with('-') || text.starts_with('+') ? text.substr(1) : text;
}

/// Returns the base (2, 8, 10 or 16) of a word that PyYAML reads as an integer, else 0. Digits may
/// be separated by underscores.
int integer_base(std::string_view text) {
  const std::string_view digits = without_sign(text);
  if (digits.starts_with("0x")) {
    return all_of(digits.substr(2), "0123456789abcdefABCDEF_") ? 16 : 0;
  }
  if (digits.starts_with("0b")) {
    return all_of(digits.substr(2), "01_") ? 2 : 0;
  }
  if (digits.size() > 1 && digits.front() == '0') {
    return all_of(digits, "01234567_") ? 8 : 0;
  }
  return !digits.starts_with('_') && all_of(digits, "0123456789_") ? 10 : 0;
}

std::string without_underscores(std::string text) {
  std::erase(text, '_');
  return text;
}

/// True if PyYAML reads the word as a float: it needs a decimal point, and an exponent needs a
/// sign.
bool is_yaml_float(std::string_view text) {
  const std::string_view number = without_sign(text);
  const auto exponent = std::min(number.find_first_of("eE"), number.size());
  const std::string_view sign = number.substr(std::min(exponent + 1, number.size()));
  const bool signed_exponent =
      exponent == number.size() || sign.starts_with('-') || sign.starts_with('+');
  const auto point = number.find('.');
  const bool starts_with_sign = number.size() != text.size();
  return point < exponent && signed_exponent && (point > 0 || !starts_with_sign);
}

bool is_float(const Node& value) {
  return value.kind == Node::Kind::number && integer_base(value.text) == 0 &&
         is_yaml_float(value.text);
}

std::int64_t integer_of(const Node& value) {
  std::string digits = without_underscores(value.text);
  const int base = integer_base(value.text);
  if (base == 2) {
    digits.erase(digits.find("0b"), 2);
  }
  return std::strtoll(digits.c_str(), nullptr, base);
}

/// Returns repr() of a string.
std::string quoted(const std::string& text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result + quote;
}

std::string repr(const Node& value) {
  return is_text(value) ? quoted(value.text) : str(value);
}

}  // namespace

bool is_integer(const Node& value) {
  return value.kind == Node::Kind::number && integer_base(value.text) != 0;
}

bool is_text(const Node& value) {
  return value.kind == Node::Kind::string ||
         (value.kind == Node::Kind::number && !is_integer(value) && !is_float(value));
}

bool is_true(const Node& value) {
  switch (value.kind) {
    case Node::Kind::null: return false;
    case Node::Kind::boolean: return value.text == "true";
    case Node::Kind::list: return !value.items.empty();
    case Node::Kind::map: return !value.entries.empty();
    case Node::Kind::number:
    case Node::Kind::string: return is_text(value) ? !value.text.empty() : number(value) != 0.0;
  }
  return false;
}

std::optional<double> number(const Node& value) {
  if (value.kind == Node::Kind::boolean) {
    return value.text == "true" ? 1.0 : 0.0;
  }
  if (is_integer(value)) {
    return static_cast<double>(integer_of(value));
  }
  return is_float(value) ? settings::parse_real(without_underscores(value.text)) : std::nullopt;
}

std::string str(const Node& value) {
  std::string text;
  switch (value.kind) {
    case Node::Kind::null: return "None";
    case Node::Kind::boolean: return value.text == "true" ? "True" : "False";
    case Node::Kind::list:
      for (const Node& item : value.items) {
        text += (text.empty() ? "" : ", ") + repr(item);
      }
      return "[" + text + "]";
    case Node::Kind::map:
      for (const auto& [key, item] : value.entries) {
        text += (text.empty() ? "" : ", ") + quoted(key) + ": " + repr(item);
      }
      return "{" + text + "}";
    case Node::Kind::number:
    case Node::Kind::string: break;
  }
  if (is_text(value)) {
    return value.text;
  }
  return is_integer(value) ? std::to_string(integer_of(value)) : float_text(*number(value));
}

std::string described(const Node& value) {
  return is_text(value) ? "the text \"" + value.text + "\"" : str(value);
}

std::string float_text(double value) {
  constexpr int kFirstLarge = 16;  // repr writes an exponent from 1e16 on, and below 1e-4
  constexpr int kFirstSmall = -5;
  std::array<char, 64> buffer{};
  const auto form = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    return std::string(buffer.data(), end);
  };
  std::string scientific = form(std::chars_format::scientific);
  const int exponent = std::atoi(scientific.substr(scientific.find('e') + 1).c_str());
  if (exponent >= kFirstLarge || exponent <= kFirstSmall) {
    return scientific;
  }
  const std::string fixed = form(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

}  // namespace acc::launcher::accelerate_cli::python
