#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace acc::test {

/// The parameters of a model by name.
using Weights = std::map<std::string, std::vector<float>>;

/// Returns the largest absolute difference of two corresponding elements.
inline double distance(const Weights& a, const Weights& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (const auto& [name, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(values[i]) - b.at(name)[i]));
    }
  }
  return most;
}

}  // namespace acc::test
