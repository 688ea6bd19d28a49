// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/random.hpp"

#include <cstdint>
#include <vector>

/// Reproducible values in [-range, range).
inline std::vector<float> random_values(std::int64_t count, std::uint64_t seed,
                                        double range = 1.0) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = train_gpt::random_fraction({seed, static_cast<std::uint64_t>(i)});
    values.push_back(static_cast<float>(range * (2.0 * u - 1.0)));
  }
  return values;
}
