#include "plan/given.hpp"

#include "acc/plugins/settings.hpp"

#include <algorithm>
#include <limits>

namespace acc::launcher {

Error bad_value(const Given& given, const std::string& expected) {
  return {Errc::config, given.where + " must be " + expected + ", got \"" + given.text + "\""};
}

std::optional<int> read_number(std::string_view text) {
  const bool digits = text.find_first_not_of("0123456789") == std::string_view::npos;
  const auto value = digits ? plugins::parse_integer(text) : std::nullopt;
  return value && *value <= std::numeric_limits<int>::max()
             ? std::optional(static_cast<int>(*value))
             : std::nullopt;
}

std::optional<Range> read_range(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = read_number(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : read_number(text.substr(dash + 1));
  return first && last && *first <= *last ? std::optional(Range{*first, *last}) : std::nullopt;
}

std::vector<int> read_ranges(const Given& given) {
  constexpr int kMost = 1'000'000;
  std::vector<int> numbers;
  for (const std::string_view entry : entries_of(given.text)) {
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

std::string_view trimmed(std::string_view text) {
  const auto first = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

std::vector<std::string_view> entries_of(std::string_view text) {
  std::vector<std::string_view> entries;
  for (auto comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    entries.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  entries.push_back(text);
  return entries;
}

}  // namespace acc::launcher
