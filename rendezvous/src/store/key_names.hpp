// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// Returns a key as PyTorch's TCPStore client sends it: with a leading slash
/// (PyTorch 2.13, torch/csrc/distributed/c10d/TCPStore.hpp, keyPrefix_).
inline std::string client_key(std::string_view key) {
  std::string name = "/";
  name += key;
  return name;
}

inline std::vector<std::string> client_keys(std::span<const std::string> keys) {
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) {
    all.push_back(client_key(key));
  }
  return all;
}

}  // namespace acc::rendezvous
