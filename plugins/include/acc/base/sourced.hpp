// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/export.hpp"

#include <string>
#include <vector>

namespace acc {

/// A value and its origin, for messages: the flag (`--tee`), the variable, or the line of a file.
template <typename T>
struct Sourced {
  T value{};
  std::string where;
};

/// Error(config): where the value comes from, what was expected, and what was found.
ACC_API Error bad_value(const Sourced<std::string>& given, const std::string& expected);

/// Reads `0-3,8`: numbers and ranges, in the order given. Throws Error(config).
ACC_API std::vector<int> read_ranges(const Sourced<std::string>& given);

}  // namespace acc
