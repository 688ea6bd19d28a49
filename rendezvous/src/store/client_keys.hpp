// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

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
