// SPDX-License-Identifier: Apache-2.0
#include "data/mixture.hpp"

#include "acc/base/error.hpp"
#include "data/permutation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace acc::data {
namespace {

constexpr std::int64_t kLongestBlock = 65536;
constexpr double kTolerance = 0.001;  ///< of the share that a weight asks for

/// Returns the counts of a block, or nothing if one is not near enough to its weight.
std::vector<std::int64_t> counts_of(std::span<const double> weights, double sum,
                                    std::int64_t block) {
  std::vector<std::int64_t> counts;
  std::int64_t total = 0;
  for (const double weight : weights) {
    const double wanted = static_cast<double>(block) * weight / sum;
    const std::int64_t count = std::llround(wanted);
    if (std::abs(static_cast<double>(count) - wanted) > kTolerance * wanted) {
      return {};
    }
    total += count;
    counts.push_back(count);
  }
  return total == block ? counts : std::vector<std::int64_t>{};
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    // The negated condition also refuses NaN.
    if (!(weights[i] > 0.0) || !std::isfinite(sum) || weights[i] * kLongestBlock < sum) {
      throw Error(
          Errc::invalid_argument,
          fmt::format("weight {} of a mixture is {}: expected a positive number of at least "
                      "1/{} of the sum of all weights, {}",
                      i, weights[i], kLongestBlock, sum));
    }
  }
  std::vector<std::int64_t> counts;
  for (std::int64_t block = 1; block <= kLongestBlock && counts.empty(); ++block) {
    counts = counts_of(weights, sum, block);
  }
  if (counts.empty()) {
    throw Error(Errc::invalid_argument,
                fmt::format("no block of up to {} samples has these {} weights of a mixture within "
                            "{} %: round them, for example to three digits",
                            kLongestBlock, weights.size(), 100.0 * kTolerance));
  }
  ends_.resize(counts.size());
  std::partial_sum(counts.begin(), counts.end(), ends_.begin());
}

Place Mixture::at(std::int64_t position, std::uint64_t seed) const {
  const std::int64_t number = position / block();
  const auto key = random_bits({seed, 0x6d6978U, static_cast<std::uint64_t>(number)});
  const auto slot = static_cast<std::int64_t>(Permutation(
      static_cast<std::uint64_t>(block()), key)(static_cast<std::uint64_t>(position % block())));
  const auto source = std::upper_bound(ends_.begin(), ends_.end(), slot) - ends_.begin();
  const std::int64_t own = count(static_cast<std::size_t>(source));
  return {source, number * own + slot - (ends_[static_cast<std::size_t>(source)] - own)};
}

}  // namespace acc::data
