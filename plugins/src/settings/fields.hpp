// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/settings/faults.hpp"
#include "acc/settings/setting_rows.hpp"
#include "acc/settings/settings.hpp"

/// Fields of plugins and members of ShardingSettings that stand for settings. mode: `fsdp` or
/// `deepspeed`, whose plugin is meant.
namespace acc::settings {

/// Sets every field whose setting has a value or a default.
void read_fields(const Settings& given, std::string_view mode, TrainingFields& plugin);

/// Returns the fields that have a value.
std::vector<ProgramValue> set_fields(const TrainingFields& plugin, std::string_view mode);

/// Sets a field by its name from a text, with the checks of its setting. class_name: for messages.
/// Throws Error(config).
void set_field(TrainingFields& plugin, std::string_view mode, std::string_view class_name,
               std::string_view name, std::string_view text);

/// Sets every member whose setting has a value or a default, and an effect in the mode.
void read_members(const Settings& given, std::string_view mode, ShardingSettings& sharding);

/// Returns the value of fsdp_reshard_after_forward with FSDP 2. Throws Error(config).
std::variant<bool, int> reshard_value(const Settings& settings, SettingKey key);

/// Returns `c.yaml:3: key`, or the name of the flag, variable or field that gave the value.
std::string place_of(const Settings& settings, SettingKey key);
/// Returns `key value (place)`, for messages about two settings that exclude each other.
std::string named_value(const Settings& settings, SettingKey key);
/// Throws Error(config): `<first> <why>, but there is <second>`, each with its value and place.
[[noreturn]] void refuse(const Settings& settings, SettingKey first, std::string_view why,
                         SettingKey second);

/// Add to the members that stand for settings what a mode derives from several of them. Throw
/// Error(config) if a group size does not divide the world size.
void add_fsdp(const Settings& settings, int world_size, ShardingSettings& result);
void add_deepspeed(const Settings& settings, int world_size, ShardingSettings& result);

/// Refuse values of a mode that exclude each other. The launcher passes them on to Python programs,
/// because Accelerate and DeepSpeed ignore one of the two. Throw Error(config) with both places.
void check_fsdp(const Settings& settings);
void check_deepspeed(const Settings& settings);

/// Stores the values of a program in `settings`. Returns one text per value: `zero_stage 3 instead
/// of the launcher's 2`. Adds wrong values to `faults`.
std::vector<std::string> apply_program_settings(const ProgramSettings& program, Settings& settings,
                                                Faults& faults);

}  // namespace acc::settings
