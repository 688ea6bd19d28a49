// SPDX-License-Identifier: Apache-2.0
// Names and texts derived from rows of the settings table: variables, expected values in messages,
// and suggestions for misspelled words.
#include "acc/settings/setting_rows.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace acc::settings {
namespace {

// Largest edit distance of a "did you mean" suggestion. For short words `closest` halves their
// length instead, so that a suggestion always shares at least half of the letters.
constexpr std::size_t kFarthestCorrection = 3;

/// Returns the Levenshtein distance of two words. Keeps one row of the table of distances.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t above = row[j];
      row[j] =
          std::min({row[j] + 1, row[j - 1] + 1, diagonal + (from[i - 1] == to[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

/// Describes a numeric range: `an integer 0..3`, `a number of at least 0`.
std::string numbers(std::string_view kind, std::string_view range) {
  if (range.empty()) {
    return std::string(kind);
  }
  const auto dots = range.find("..");
  const std::string_view low = range.substr(0, dots);
  const std::string_view high = range.substr(dots + 2);
  if (high.empty()) {
    return std::string(kind) + " of at least " + std::string(low);
  }
  return low == high ? std::string(low) : std::string(kind) + " " + std::string(range);
}

/// Describes a choice: `no, fp16, bf16 or fp8`.
std::string choices(std::string_view allowed) {
  std::string text;
  const auto parts = split(allowed, '|');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ") + std::string(parts[i]);
  }
  return text;
}

}  // namespace

bool matches(std::string_view key, std::string_view pattern) noexcept {
  return pattern.ends_with('*') ? key.starts_with(pattern.substr(0, pattern.size() - 1))
                                : key == pattern;
}

std::span<const SettingRow> settings_table() noexcept {
  return kSettingRows;
}

// A linear search is fast enough: the table has about 130 rows, and settings are read at start
// only.
const SettingRow* find_setting(std::string_view key, std::span<const SettingRow> table) noexcept {
  const auto same = [](char a, char b) { return (a == '-' ? '_' : a) == b; };
  for (const SettingRow& row : table) {
    if (std::ranges::equal(key, row.key, same)) {
      return &row;
    }
  }
  return nullptr;
}

std::string own_variable(const SettingRow& row) {
  std::string name = "ACC_";
  for (const char c : row.key) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// All sections except `launch` concern the program. Of `launch` only those settings that Accelerate
// exports.
bool reaches_workers(const SettingRow& row) noexcept {
  return row.section != Section::launch || !row.environment.empty();
}

std::string expected_value(const SettingRow& row) {
  switch (row.type) {
    case Type::text: return "a text";
    case Type::list: return "names joined by commas";
    case Type::boolean: return "true or false";
    case Type::integer: return numbers("an integer", row.allowed);
    case Type::count: return numbers("a whole number (5e8 is one)", row.allowed);
    case Type::real: return numbers("a number", row.allowed);
    case Type::size: return numbers("a size (such as 64MiB)", row.allowed);
    case Type::duration: return numbers("a time (such as 500ms or 2h)", row.allowed);
    case Type::choice: return choices(row.allowed);
    case Type::numbered_choice: return choices(row.allowed) + ", or its number from 1";
  }
  return {};
}

std::string closest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t nearest = std::min(kFarthestCorrection, word.size() / 2) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < nearest) {
      nearest = distance;
      best = candidate;
    }
  }
  return std::string(best);
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string best = closest(word, candidates);
  return best.empty() ? "" : "; did you mean \"" + best + "\"?";
}

}  // namespace acc::settings
