// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace acc::rendezvous::test {

using nlohmann::json;

/// Vectors recorded with PyTorch 2.13.0; test/data/tcpstore/meta.json explains the fields.
inline std::vector<json> golden_vectors(const std::string& kind) {
  std::ifstream file(ACC_TEST_DATA "/tcpstore/vectors.json");
  std::vector<json> chosen;
  for (const json& vector : json::parse(file)) {
    if (vector.at("kind") == kind) {
      chosen.push_back(vector);
    }
  }
  REQUIRE(chosen.size() > 20);
  return chosen;
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline std::string bytes_of(const json& vector, const char* field) {
  return from_hex(vector.at(field).get<std::string>());
}

}  // namespace acc::rendezvous::test
