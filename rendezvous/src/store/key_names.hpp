// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

namespace acc::rendezvous {

/// Lists keys for a message: at most eight, then "and N more".
inline std::string key_names(std::span<const std::string> keys) {
  constexpr std::size_t kNamed = 8;
  std::string names = fmt::format("{}", fmt::join(keys.first(std::min(keys.size(), kNamed)), ", "));
  if (keys.size() > kNamed) {
    names += fmt::format(" and {} more", keys.size() - kNamed);
  }
  return names;
}

}  // namespace acc::rendezvous
