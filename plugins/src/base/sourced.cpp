// SPDX-License-Identifier: Apache-2.0
#include "acc/base/sourced.hpp"

#include "acc/base/text.hpp"

namespace acc {

Error bad_value(const Sourced<std::string>& given, const std::string& expected) {
  return {Errc::config,
          given.where + " must be " + expected + ", got \"" + printable(given.value) + "\""};
}

std::vector<int> read_ranges(const Sourced<std::string>& given) {
  constexpr int kMost = 1'000'000;
  std::vector<int> numbers;
  for (const std::string_view entry : entries_of(given.value)) {
    const auto range = read_range(trimmed(entry));
    if (!range || range->last > kMost) {
      throw bad_value(given, "numbers and ranges joined by commas, as in 0-3,8");
    }
    for (int number = range->first; number <= range->last; ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

}  // namespace acc
