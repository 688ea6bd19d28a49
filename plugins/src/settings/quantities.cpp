// SPDX-License-Identifier: Apache-2.0
// Parsing of numbers with a unit: sizes and durations.
#include "acc/settings/settings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace acc::settings {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array kSizes = {
    Unit{"b", 1}, Unit{"kib", std::int64_t{1} << 10}, Unit{"mib", std::int64_t{1} << 20},
    Unit{"gib", std::int64_t{1} << 30}, Unit{"tib", std::int64_t{1} << 40}};
constexpr std::array kTimes = {Unit{"ms", 1}, Unit{"s", 1000}, Unit{"min", 60'000},
                               Unit{"h", 3'600'000}, Unit{"d", 86'400'000}};

/// A number and the unit after it, as texts. Blanks between them are allowed.
struct Quantity {
  std::string_view number;
  std::string unit;
};

Quantity quantity_of(std::string_view text) {
  text = trimmed(text);
  const auto end = std::min(text.find_first_not_of("0123456789."), text.size());
  return {text.substr(0, end), lower(trimmed(text.substr(end)))};
}

std::optional<std::int64_t> factor_of(std::string_view unit, std::span<const Unit> units) {
  const auto found = std::ranges::find(units, unit, &Unit::name);
  return found == units.end() ? std::nullopt : std::optional(found->factor);
}

}  // namespace

std::optional<std::int64_t> parse_size(std::string_view text) {
  const Quantity quantity = quantity_of(text);
  const auto number = parse_integer(quantity.number);
  const auto factor = quantity.unit.empty() ? 1 : factor_of(quantity.unit, kSizes);
  if (!number || !factor || *number > std::numeric_limits<std::int64_t>::max() / *factor) {
    return std::nullopt;
  }
  return *number * *factor;
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  // 1e15 ms are about 30 000 years. The bound keeps later sums with clock values from overflowing.
  constexpr double kLongest = 1e15;
  const Quantity quantity = quantity_of(text);
  const auto number = parse_real(quantity.number);
  const auto factor = number == 0.0 && quantity.unit.empty() ? 1 : factor_of(quantity.unit, kTimes);
  if (!number || !factor || *number * static_cast<double>(*factor) > kLongest) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(std::llround(*number * static_cast<double>(*factor)));
}

}  // namespace acc::settings
