// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/settings.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace acc::settings {
namespace {

/// Parses a number that must fill the text completely. std::from_chars ignores the locale and
/// accepts no leading '+', which Python's int() and float() do.
std::optional<double> parse_whole(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    return std::nullopt;
  }
  return value;
}

/// Returns the choice that `text` names, in any letter case or, for a numbered choice, by its
/// number from 1. Accelerate accepts numbers for the enumerations of FSDP.
std::optional<std::string_view> find_choice(const SettingRow& row, std::string_view text) {
  const auto choices = split(row.allowed, '|');
  if (row.type == Type::numbered_choice) {
    const auto number = parse_integer(text);
    if (number && *number >= 1 && *number <= static_cast<std::int64_t>(choices.size())) {
      return choices[static_cast<std::size_t>(*number - 1)];
    }
  }
  const auto found = std::ranges::find(choices, lower(text), lower);
  return found == choices.end() ? std::nullopt : std::optional(*found);
}

/// True if `parse` accepts `text` and the value is in `range` (`LOW..[HIGH]`; empty: no bounds).
/// `parse` also reads the two bounds.
template <typename Parse>
bool in_range(std::string_view text, std::string_view range, Parse parse) {
  const auto value = parse(text);
  if (!value || range.empty()) {
    return value.has_value();
  }
  const auto dots = range.find("..");
  const auto low = parse(range.substr(0, dots));
  const auto high = parse(range.substr(dots + 2));
  return *value >= low.value_or(*value) && *value <= high.value_or(*value);
}

/// True if `text` is a value that the row allows.
bool valid(const SettingRow& row, std::string_view text) {
  switch (row.type) {
    case Type::text:
    case Type::list: return true;
    case Type::boolean: return parse_boolean(text).has_value();
    case Type::integer: return in_range(text, row.allowed, parse_integer);
    case Type::count: return in_range(text, row.allowed, parse_count);
    case Type::real: return in_range(text, row.allowed, parse_real);
    case Type::size: return in_range(text, row.allowed, parse_size);
    case Type::duration: return in_range(text, row.allowed, parse_duration);
    case Type::choice:
    case Type::numbered_choice: return find_choice(row, text).has_value();
  }
  return false;
}

/// Returns the error for a wrong value: place, key, expected and found value, and a suggestion for
/// a misspelled choice. The value is escaped, because it may come from another machine or a file.
Error bad_value(const SettingRow& row, std::string_view text, const Source& source) {
  std::string name(row.key);
  if (source.kind == Source::Kind::flag || source.kind == Source::Kind::environment ||
      source.kind == Source::Kind::program) {
    name.clear();  // the place is the name of a flag, variable or field: do not repeat the key
  }
  return Error(Errc::config, source.where + (name.empty() ? "" : ": " + name) + " must be " +
                                 expected_value(row) + ", got \"" + printable(text) + "\"" +
                                 did_you_mean(text, split(row.allowed, '|')));
}

}  // namespace

std::string describe(const Source& source) {
  switch (source.kind) {
    case Source::Kind::default_value: return "default";
    case Source::Kind::environment: return "environment " + source.where;
    case Source::Kind::derived: return "derived: " + source.where;
    case Source::Kind::file:
    case Source::Kind::deepspeed_file:
    case Source::Kind::job:
    case Source::Kind::flag:
    case Source::Kind::program: return source.where;
  }
  return {};
}

void check_value(const SettingRow& row, std::string_view text, const Source& source) {
  if (!valid(row, text)) {
    throw bad_value(row, text, source);
  }
}

Settings::Settings(std::span<const SettingRow> table) : table_(table) {
  for (const SettingRow& row : table_) {
    entries_.push_back({std::string(row.fallback), {}});
  }
}

// A key of another table is a bug of the calling code, unlike an unknown name in `set_named`, which
// comes from a user.
std::size_t Settings::index(SettingKey key) const {
  const SettingRow* row = find_setting(key.name(), table_);
  if (row == nullptr) {
    throw Error(Errc::internal, "this table has no setting " + key.text());
  }
  return static_cast<std::size_t>(row - table_.data());
}

void Settings::set(SettingKey key, std::string text, Source source) {
  const std::size_t i = index(key);
  check_value(table_[i], text, source);
  entries_[i] = {std::move(text), std::move(source)};
}

void Settings::set_named(std::string_view name, std::string text, Source source) {
  const SettingRow* row = find_setting(name, table_);
  if (row == nullptr) {
    std::vector<std::string_view> keys;
    for (const SettingRow& each : table_) {
      keys.push_back(each.key);
    }
    throw Error(Errc::config, source.where + ": unknown key \"" + std::string(name) + "\"" +
                                  did_you_mean(name, keys));
  }
  set(*row, std::move(text), std::move(source));
}

void Settings::reset(SettingKey key) {
  const std::size_t i = index(key);
  entries_[i] = {std::string(table_[i].fallback), {}};
}

bool Settings::has(SettingKey key) const {
  return !text(key).empty();
}

bool Settings::given(SettingKey key) const {
  return source(key).kind != Source::Kind::default_value;
}

const std::string& Settings::text(SettingKey key) const {
  return entries_[index(key)].text;
}

const Source& Settings::source(SettingKey key) const {
  return entries_[index(key)].source;
}

// `set` has checked every text against its row, so the getters cannot fail to parse it. The
// fallback values are for settings that have no value.

bool Settings::boolean(SettingKey key) const {
  return parse_boolean(text(key)).value_or(false);
}

std::int64_t Settings::integer(SettingKey key) const {
  return parse_count(text(key)).value_or(0);
}

double Settings::real(SettingKey key) const {
  return parse_real(text(key)).value_or(0.0);
}

std::int64_t Settings::size(SettingKey key) const {
  return parse_size(text(key)).value_or(0);
}

std::chrono::milliseconds Settings::duration(SettingKey key) const {
  return parse_duration(text(key)).value_or(std::chrono::milliseconds(0));
}

std::string Settings::choice(SettingKey key) const {
  return std::string(find_choice(table_[index(key)], text(key)).value_or(""));
}

std::vector<std::string> Settings::list(SettingKey key) const {
  std::vector<std::string> names;
  for (const std::string_view part : split(text(key), ',')) {
    if (const auto name = trimmed(part); !name.empty()) {
      names.emplace_back(name);
    }
  }
  return names;
}

std::string Settings::canonical(SettingKey key) const {
  const SettingRow& row = table_[index(key)];
  switch (row.type) {
    case Type::boolean: return boolean(key) ? "true" : "false";
    case Type::integer:
    case Type::count: return std::to_string(integer(key));
    case Type::real: return fmt::format("{}", real(key));
    case Type::choice:
    case Type::numbered_choice: return choice(key);
    case Type::list: return fmt::format("{}", fmt::join(list(key), ","));
    default: return row.format == TextFormat::lower ? lower(text(key)) : text(key);
  }
}

std::optional<bool> parse_boolean(std::string_view text) {
  const std::string word = lower(text);
  for (const std::string_view yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) {
      return true;
    }
  }
  for (const std::string_view no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) {
      return false;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  if (const auto integer = parse_integer(text)) {
    return integer;
  }
  // Below 2^63: converting a larger double to std::int64_t is undefined behaviour.
  constexpr double kLargest = 9e18;
  const auto number = parse_real(text);
  if (!number || std::abs(*number) > kLargest || *number != std::floor(*number)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(*number);
}

std::optional<double> parse_real(std::string_view text) {
  const auto number = parse_whole(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

}  // namespace acc::settings
