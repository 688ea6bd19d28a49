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

/// A value in a JSON file that may hold anything, and how a message calls it: "files[3].nbytes".
/// Every function throws Error(config) with path, name, what was expected and what was found. Value
/// and path outlive it.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, const std::filesystem::path& path, std::string name)
      : value_(value), path_(path), name_(std::move(name)) {}

  /// A member that must be there.
  [[nodiscard]] JsonValue operator[](const char* key) const;
  [[nodiscard]] bool contains(const char* key) const { return value_.contains(key); }
  [[nodiscard]] std::map<std::string, JsonValue> members() const;
  [[nodiscard]] std::vector<JsonValue> elements() const;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::int64_t integer(
      std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  [[nodiscard]] bool boolean() const;
  /// A number, or "inf", "-inf", "nan", for which JSON has no words.
  [[nodiscard]] double real() const;
  /// 8 hexadecimal digits.
  [[nodiscard]] std::uint32_t crc() const;
  /// An object, as compact JSON.
  [[nodiscard]] std::string object() const;

  [[nodiscard]] bool is_text() const noexcept { return value_.is_string(); }
  /// How messages begin: "acc_checkpoint.json: 'files[3].nbytes'".
  [[nodiscard]] std::string where() const { return path_.string() + ": '" + name_ + "'"; }
  /// Throws unless `right`.
  const nlohmann::json& expect(bool right, const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  const std::filesystem::path& path_;
  std::string name_;
};

}  // namespace acc::checkpoint
