// SPDX-License-Identifier: Apache-2.0
#include "files/json_value.hpp"

#include "acc/base/json.hpp"
#include "acc/checkpoint/files/errors.hpp"

#include <charconv>

namespace acc::checkpoint {

using nlohmann::json;

namespace {

// JSON has no numbers for these. The names are those that Manifest writes.
const std::map<std::string, double> kNotFinite = {
    {"inf", std::numeric_limits<double>::infinity()},
    {"-inf", -std::numeric_limits<double>::infinity()},
    {"nan", std::numeric_limits<double>::quiet_NaN()},
};

}  // namespace

JsonValue JsonValue::operator[](const char* key) const {
  const json& object = expect(value_.is_object(), "an object");
  const std::string name = name_.empty() ? key : name_ + "." + key;
  const auto found = object.find(key);
  if (found == object.end()) {
    fail(path_, "'" + name + "' is missing");
  }
  return {*found, path_, name};
}

std::map<std::string, JsonValue> JsonValue::members() const {
  std::map<std::string, JsonValue> result;
  for (const auto& [key, value] : expect(value_.is_object(), "an object").items()) {
    result.try_emplace(key, value, path_, name_ + "." + key);
  }
  return result;
}

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> result;
  for (const json& value : expect(value_.is_array(), "a list")) {
    result.emplace_back(value, path_, name_ + "[" + std::to_string(result.size()) + "]");
  }
  return result;
}

std::string JsonValue::text() const {
  return expect(value_.is_string(), "a string").get<std::string>();
}

std::int64_t JsonValue::integer(std::int64_t least, std::int64_t most) const {
  // nlohmann::json keeps integers from 2^63 on as unsigned, and integers that do not fit in 64 bits
  // as floating point. Both are out of every range here.
  const bool fits = value_.is_number_integer() &&
                    (!value_.is_number_unsigned() ||
                     value_.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
  const std::int64_t result = fits ? value_.get<std::int64_t>() : 0;
  if (!(fits && least <= result && result <= most)) {
    expect(false, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return result;
}

bool JsonValue::boolean() const {
  return expect(value_.is_boolean(), "true or false").get<bool>();
}

double JsonValue::real() const {
  if (value_.is_number()) {
    return value_.get<double>();
  }
  const auto found =
      kNotFinite.find(value_.is_string() ? value_.get_ref<const std::string&>() : "");
  expect(found != kNotFinite.end(), "a number");
  return found->second;
}

std::uint32_t JsonValue::crc() const {
  const std::string digits = text();
  std::uint32_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, value, 16);
  expect(digits.size() == 8 && parsed.ec == std::errc() && parsed.ptr == end,
         "8 hexadecimal digits");
  return value;
}

std::string JsonValue::object() const {
  return text_of_json(expect(value_.is_object(), "an object"));
}

// A message shows the beginning of the found value. Bytes that are not UTF-8 are replaced.
const json& JsonValue::expect(bool right, const std::string& expected) const {
  if (!right) {
    constexpr std::size_t kShown = 60;
    const std::string found =
        text_of_json(value_, -1, ' ', true, json::error_handler_t::replace).substr(0, kShown);
    fail(path_,
         (name_.empty() ? "" : "'" + name_ + "': ") + expected + " expected, found " + found);
  }
  return value_;
}

}  // namespace acc::checkpoint
