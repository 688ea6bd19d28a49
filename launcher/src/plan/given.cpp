#include "plan/given.hpp"

#include "acc/base/text.hpp"
#include "acc/plugins/settings.hpp"

#include <limits>

namespace acc::launcher {

Error bad_value(const Given& given, const std::string& expected) {
  return {Errc::config, given.where + " must be " + expected + ", got \"" + printable(given.text) + "\""};
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
    const auto range = read_range(plugins::trimmed(entry));
    if (!range || range->last > kMost) {
      throw bad_value(given, "numbers and ranges joined by commas, as in 0-3,8");
    }
    for (int number = range->first; number <= range->last; ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += (text.empty() ? "" : ",") + std::to_string(number);
  }
  return text;
}

std::vector<std::string_view> entries_of(std::string_view text, char separator) {
  std::vector<std::string_view> entries = plugins::split(text, separator);
  if (text.empty() || text.ends_with(separator)) {
    entries.emplace_back();
  }
  return entries;
}

}  // namespace acc::launcher
