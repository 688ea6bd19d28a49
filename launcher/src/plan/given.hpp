#pragma once

#include "acc/base/error.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A value and how the user gave it: `--tee`, or the variable's name.
struct Given {
  std::string where;
  std::string text;
};

/// Error(config): where it stands, what was expected, and what was found.
Error bad_value(const Given& given, const std::string& expected);

/// Digits only: no sign, no blank.
std::optional<int> read_number(std::string_view text);

struct Range {
  int first = 0;
  int last = 0;
};

/// `N` or `FIRST-LAST`.
std::optional<Range> read_range(std::string_view text);

/// `0-3,8`: numbers and ranges, in their order. Throws Error(config).
std::vector<int> read_ranges(const Given& given);

/// `0,1,5`
std::string joined(const std::vector<int>& numbers);

/// What separators part. Unlike `plugins::split`, an empty text or end is an entry too.
std::vector<std::string_view> entries_of(std::string_view text, char separator = ',');

}  // namespace acc::launcher
