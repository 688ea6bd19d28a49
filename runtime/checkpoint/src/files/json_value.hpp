// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace acc::checkpoint {

/// A value in a JSON file with untrusted content, together with its name for messages
/// ("files[3].nbytes"). Every function throws Error(config) with the path, the name, what was
/// expected and what was found. The JSON value and the path must outlive this object.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, const std::filesystem::path& path, std::string name)
      : value_(value), path_(path), name_(std::move(name)) {}

  /// Returns a member of an object. Throws if it is missing.
  [[nodiscard]] JsonValue operator[](const char* key) const;
  [[nodiscard]] bool contains(const char* key) const { return value_.contains(key); }
  [[nodiscard]] std::map<std::string, JsonValue> members() const;
  [[nodiscard]] std::vector<JsonValue> elements() const;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::int64_t integer(
      std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  [[nodiscard]] bool boolean() const;
  /// A number, or one of the strings "inf", "-inf" and "nan", which JSON cannot express as numbers.
  [[nodiscard]] double real() const;
  /// A CRC-32, stored as a string of 8 hexadecimal digits.
  [[nodiscard]] std::uint32_t crc() const;
  /// An object, returned as compact JSON text.
  [[nodiscard]] std::string object() const;

  [[nodiscard]] bool is_text() const noexcept { return value_.is_string(); }
  /// Beginning of a message about this value: "acc_checkpoint.json: 'files[3].nbytes'".
  [[nodiscard]] std::string where() const { return path_.string() + ": '" + name_ + "'"; }
  /// Throws unless `right` is true. Returns the JSON value.
  const nlohmann::json& expect(bool right, const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  const std::filesystem::path& path_;
  std::string name_;
};

}  // namespace acc::checkpoint
