#pragma once

#include "acc/base/error.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A value with its origin.
struct Given {
  std::string where;  ///< flag or variable, as in `--tee`
  std::string text;
};

/// Returns Error(config) "WHERE must be EXPECTED, got "TEXT"".
Error bad_value(const Given& given, const std::string& expected);

/// Parses a number of digits only, without sign or spaces. Empty if it is none or exceeds int.
std::optional<int> read_number(std::string_view text);

/// Inclusive range of numbers.
struct Range {
  int first = 0;
  int last = 0;
};

/// Parses `N` or `FIRST-LAST`. Empty if it is neither.
std::optional<Range> read_range(std::string_view text);

/// Parses numbers and ranges joined by commas, `0-3,8`, and keeps their order. Throws
/// Error(config).
std::vector<int> read_ranges(const Given& given);

/// Formats numbers as `0,1,5`.
std::string joined(const std::vector<int>& numbers);

/// Splits text at a separator. Unlike `plugins::split`, keeps an empty text and an empty last
/// entry.
std::vector<std::string_view> entries_of(std::string_view text, char separator = ',');

}  // namespace acc::launcher
