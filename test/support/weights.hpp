// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace acc::test {

/// The parameters of a model by name.
using Weights = std::map<std::string, std::vector<float>>;

/// Returns the elements of a parameter in a scope.
std::vector<float> values_of(const auto& use, Parameter parameter, int numel) {
  return {use[parameter], use[parameter] + numel};
}

/// Writes rule(i) to element i of a gradient, or adds it to what is there. Does nothing for a
/// frozen parameter.
void write_gradient(const Gradient& to, int numel, const auto& rule) {
  for (int i = 0; to.data != nullptr && i < numel; ++i) {
    const float gradient = rule(i);
    to.data[i] = to.beta == 0.0F ? gradient : to.data[i] + gradient;
  }
}

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
