// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

namespace acc {

/// Formats a time in seconds: "600 s", "0.25 s". Never rounds a short one down to 0.
inline std::string seconds_text(std::chrono::duration<double> time) {
  return fmt::format("{:.10g} s", time.count());
}

}  // namespace acc
