// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/plugins/faults.hpp"
#include "acc/plugins/setting_rows.hpp"
#include "acc/plugins/settings.hpp"
#include "settings/words.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tuple>
#include <variant>

/// Code that both plugins share. A plugin has a list of fields, each of which stands for a setting.
/// The list is used in both directions: to read settings into a plugin, and to write the fields of
/// a program's plugin into settings.
namespace acc::plugins {

/// A field of a plugin and the setting that it stands for.
template <typename Owner, typename Value>
struct Field {
  std::string_view name;  ///< name of the field in the plugin
  SettingKey key;         ///< setting that the field stands for
  std::optional<Value> Owner::*member;
};

/// Fields that both plugins have (TrainingFields).
constexpr auto kTrainingFields = std::tuple{
    Field{"mixed_precision", "mixed_precision"_key, &TrainingFields::mixed_precision},
    Field{"reduce_dtype", "reduce_dtype"_key, &TrainingFields::reduce_dtype},
    Field{"nan_policy", "nan_policy"_key, &TrainingFields::nan_policy},
    Field{"stochastic_rounding", "stochastic_rounding"_key, &TrainingFields::stochastic_rounding},
    Field{"deterministic", "deterministic"_key, &TrainingFields::deterministic},
    Field{"gradient_accumulation_steps", "gradient_accumulation_steps"_key,
          &TrainingFields::gradient_accumulation_steps},
    Field{"gradient_clipping", "gradient_clipping"_key, &TrainingFields::gradient_clipping}};

// text_of: a field's value in the spelling of the settings. read: the opposite.

inline std::string text_of(bool value) {
  return value ? "true" : "false";
}
inline std::string text_of(const std::string& value) {
  return value;
}
inline std::string text_of(const std::vector<std::string>& value) {
  return fmt::format("{}", fmt::join(value, ","));
}
inline std::string text_of(const std::variant<bool, int>& value) {
  const int* size = std::get_if<int>(&value);
  return size != nullptr ? std::to_string(*size) : text_of(std::get<bool>(value));
}
template <typename Value>
std::string text_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return word_of(value);
  } else {
    return fmt::format("{}", value);
  }
}

inline void read(const Settings& settings, SettingKey key, bool& value) {
  value = settings.boolean(key);
}
inline void read(const Settings& settings, SettingKey key, double& value) {
  value = settings.real(key);
}
inline void read(const Settings& settings, SettingKey key, std::string& value) {
  value = settings.text(key);
}
inline void read(const Settings& settings, SettingKey key, std::vector<std::string>& value) {
  value = settings.list(key);
}
void read(const Settings& settings, SettingKey key, std::variant<bool, int>& value);
template <typename Value>
void read(const Settings& settings, SettingKey key, Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    value = value_named<Value>(settings, key).value_or(value);
  } else {
    value = static_cast<Value>(settings.integer(key));
  }
}

template <typename Plugin, typename Owner, typename Value>
void read_field(const Settings& settings, const Field<Owner, Value>& field, Plugin& plugin) {
  if (settings.has(field.key)) {
    read(settings, field.key, (plugin.*field.member).emplace());
  }
}

/// Sets every field whose setting has a value.
template <typename Plugin>
void read_fields(const Settings& settings, const auto& fields, Plugin& plugin) {
  std::apply([&](const auto&... field) { (read_field(settings, field, plugin), ...); }, fields);
}

/// Returns the fields that have a value.
template <typename Plugin>
std::vector<ProgramValue> set_fields(const Plugin& plugin, const auto& fields) {
  std::vector<ProgramValue> values;
  const auto add = [&](const auto& field) {
    if (const auto& value = plugin.*field.member) {
      values.push_back({std::string(field.name), field.key.text(), text_of(*value)});
    }
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, fields);
  return values;
}

/// Sets a field by its name from a text, with the checks of its setting. class_name: for messages.
/// Throws Error(config).
template <typename Plugin>
void set_field(Plugin& plugin, const auto& fields, std::string_view class_name,
               std::string_view name, std::string_view text) {
  std::vector<std::string_view> names;
  bool found = false;
  const auto try_field = [&](const auto& field) {
    names.push_back(field.name);
    if (field.name == name) {
      Settings one;
      one.set(field.key, std::string(text),
              {Source::Kind::program, fmt::format("{}.{}", class_name, name)});
      read_field(one, field, plugin);
      found = true;
    }
  };
  std::apply([&](const auto&... field) { (try_field(field), ...); }, fields);
  if (!found) {
    throw Error(Errc::config, fmt::format("{} has no field \"{}\"{}", class_name, name,
                                          did_you_mean(name, names)));
  }
}

/// Returns `c.yaml:3: key`, or the name of the flag, variable or field that gave the value.
std::string place_of(const Settings& settings, SettingKey key);
/// Returns `key value (place)`, for messages about two settings that exclude each other.
std::string named_value(const Settings& settings, SettingKey key);

/// Translate a plugin's settings to those of the runtime. Throw Error(config) if a group size does
/// not divide the world size.
ShardingSettings fsdp_sharding_settings(const Settings& settings, int world_size);
ShardingSettings deepspeed_sharding_settings(const Settings& settings, int world_size);

/// Stores the values of a program in `settings`. Returns one text per value: `zero_stage 3 instead
/// of the launcher's 2`. Adds wrong values to `faults`.
std::vector<std::string> apply_program_settings(const ProgramSettings& program, Settings& settings,
                                                Faults& faults);

/// Refuses values that exclude each other. The launcher passes them on to Python programs, because
/// Accelerate and DeepSpeed ignore one of the two. Throws Error(config) with both places.
void check_contradictions(const Settings& settings, std::string_view origin);

}  // namespace acc::plugins
