// SPDX-License-Identifier: Apache-2.0
// Reading and printing of the fields that rows of the settings table name. Only this source
// compiles their functions.
#include "settings/fields.hpp"

#include "acc/settings/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <concepts>
#include <map>
#include <type_traits>
#include <variant>

namespace acc::settings {
namespace {

template <typename Value>
inline constexpr bool is_optional = false;
template <typename Value>
inline constexpr bool is_optional<std::optional<Value>> = true;

template <typename Value>
void parse_setting(const Settings& settings, const SettingRow& row, Value& value) {
  if constexpr (is_optional<Value>) {
    parse_setting(settings, row, value.emplace());
  } else if constexpr (std::same_as<Value, bool>) {
    value = settings.boolean(row);
  } else if constexpr (std::same_as<Value, double>) {
    value = settings.real(row);
  } else if constexpr (std::same_as<Value, std::string>) {
    value = row.type == Type::choice ? settings.choice(row) : settings.text(row);
  } else if constexpr (std::same_as<Value, std::vector<std::string>>) {
    value = settings.list(row);
  } else if constexpr (std::same_as<Value, std::variant<bool, int>>) {
    value = reshard_value(settings, row);
  } else if constexpr (std::is_enum_v<Value>) {
    value = value_named<Value>(settings.choice(row)).value_or(value);
  } else {
    value = static_cast<Value>(settings.integer(row));
  }
}

enum class Spelling { of_settings, of_messages };

template <typename Value>
std::string printed(const Value& value, Spelling spelling) {
  if constexpr (is_optional<Value>) {
    return value ? printed(*value, spelling) : "the program's";
  } else if constexpr (std::same_as<Value, std::vector<std::string>>) {
    return fmt::format("{}", fmt::join(value, ","));
  } else if constexpr (std::same_as<Value, std::variant<bool, int>>) {
    return std::visit([](auto each) { return fmt::format("{}", each); }, value);
  } else if constexpr (std::is_enum_v<Value>) {
    const auto& [same, name, setting] = word_of(value);
    return spelling == Spelling::of_messages ? std::string(name)
           : setting.empty()                 ? upper(name)  // no setting can have it
                                             : std::string(setting);
  } else {
    return fmt::format("{}", value);
  }
}

template <typename Struct, typename Value>
Struct struct_of(Value Struct::*);  // not defined

/// Returns the part of a plugin that has the field.
template <auto Field, typename Plugin>
auto& owner_of(Plugin& plugin) {
  using Owner = decltype(struct_of(Field));
  return static_cast<std::conditional_t<std::is_const_v<Plugin>, const Owner&, Owner&>>(plugin);
}

std::string_view name_of(const SettingRow& row) {
  constexpr std::string_view kPrefix = "fsdp_";
  return !row.plugin.name.empty()       ? row.plugin.name
         : row.key.starts_with(kPrefix) ? row.key.substr(kPrefix.size())
                                        : row.key;
}

/// Returns the settings with the defaults that depend on the ZeRO stage.
Settings with_defaults_of_stage(Settings settings) {
  for (const SettingRow& row : settings_table()) {
    if (row.true_in_stage_3 && !settings.has(row)) {
      settings.set(row, is_zero3(settings) ? "true" : "false",
                   {Source::Kind::derived, "the stage"});
    }
  }
  return settings;
}

/// Calls `use` with each row that stands for a field of the mode's plugin.
void for_each_field(std::string_view mode, auto&& use) {
  for (const SettingRow& row : settings_table()) {
    if (row.plugin.read != nullptr && (row.plugin.mode.empty() || row.plugin.mode == mode)) {
      use(row);
    }
  }
}

}  // namespace

template <auto Field>
void read_field(const Settings& settings, const SettingRow& row, TrainingFields& plugin) {
  parse_setting(settings, row, owner_of<Field>(plugin).*Field);
}

template <auto Field>
std::optional<std::string> field_text(const TrainingFields& plugin) {
  const auto& value = owner_of<Field>(plugin).*Field;
  return value ? std::optional(printed(*value, Spelling::of_settings)) : std::nullopt;
}

template <auto Field>
const void* field_place(const TrainingFields& plugin) {
  return &(owner_of<Field>(plugin).*Field);
}

template <auto... Path>
void read_member(const Settings& settings, const SettingRow& row, ShardingSettings& sharding) {
  parse_setting(settings, row, (sharding.*....*Path));
}

template <auto... Path>
std::string member_text(const ShardingSettings& sharding) {
  return printed((sharding.*....*Path), Spelling::of_messages);
}

template <auto... Path>
std::string member_setting(const ShardingSettings& sharding) {
  return printed((sharding.*....*Path), Spelling::of_settings);
}

void read_fields(const Settings& given, std::string_view mode, TrainingFields& plugin) {
  const Settings settings = with_defaults_of_stage(given);
  for_each_field(mode, [&](const SettingRow& row) {
    if (settings.has(row)) {
      row.plugin.read(settings, row, plugin);
    }
  });
}

std::vector<ProgramValue> set_fields(const TrainingFields& plugin, std::string_view mode) {
  std::map<const void*, ProgramValue> by_place;
  for_each_field(mode, [&](const SettingRow& row) {
    if (auto text = row.plugin.text(plugin)) {
      by_place.insert({row.plugin.place(plugin),
                       {std::string(name_of(row)), std::string(row.key), *std::move(text)}});
    }
  });
  std::vector<ProgramValue> values;
  for (auto& [place, value] : by_place) {
    values.push_back(std::move(value));
  }
  return values;
}

void set_field(TrainingFields& plugin, std::string_view mode, std::string_view class_name,
               std::string_view name, std::string_view text) {
  std::vector<std::string_view> names;
  const SettingRow* found = nullptr;
  for_each_field(mode, [&](const SettingRow& row) {
    names.push_back(name_of(row));
    found = names.back() == name ? &row : found;
  });
  if (found == nullptr) {
    throw Error(Errc::config, fmt::format("{} has no field \"{}\"{}", class_name, name,
                                          did_you_mean(name, names)));
  }
  Settings one;
  one.set(*found, std::string(text),
          {Source::Kind::program, fmt::format("{}.{}", class_name, name)});
  if (one.has(*found)) {
    found->plugin.read(one, *found, plugin);
  }
}

void read_members(const Settings& given, std::string_view mode, ShardingSettings& sharding) {
  const Settings settings = with_defaults_of_stage(given);
  for (const SettingRow& row : settings_table()) {
    if (row.engine.read != nullptr && applies(row.section, mode) && settings.has(row) &&
        (!row.key.starts_with("stage3_") || is_zero3(settings))) {
      row.engine.read(settings, row, sharding);
    }
  }
}

}  // namespace acc::settings
