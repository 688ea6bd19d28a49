// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/text.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::settings {

/// Part of the configuration that a setting belongs to. Determines its YAML block and the modes in
/// which it has an effect (see `applies`).
enum class Section {
  launch,       ///< top-level YAML key, or only a flag
  training,     ///< `deepspeed_config` in YAML, but has an effect in every mode
  fsdp,         ///< `fsdp_config`; its prefix `fsdp_` may be left out there
  deepspeed,    ///< `deepspeed_config`
  zero,         ///< only in the DeepSpeed JSON file; no flag and no YAML key
  parallelism,  ///< `parallelism_config`
  dynamo,       ///< `dynamo_config`; its prefix `dynamo_` may be left out there
  fp8,          ///< `fp8_config`; its prefix `fp8_` may be left out there
};

/// Type of a setting's value.
enum class Type {
  text,
  boolean,
  integer,
  count,  ///< an integer that may be written as a floating-point number: `5e8`
  real,
  size,      ///< bytes: `64MiB`
  duration,  ///< `500ms`, `2h`; 0 needs no unit
  choice,
  numbered_choice,  ///< a choice that can also be given by its number, counted from 1
  list              ///< names joined by commas
};

/// Form of a setting on the command line. A `toggle` takes no value. A `deniable_toggle` may take
/// one: `--flag=false`, or the next argument if that is true or false.
enum class Flag { none, value, toggle, deniable_toggle };

/// Heading of --help that a flag of the section `launch` is listed under.
enum class Group { launch, program, mode, workers, machines, cores, limits, output };

/// Condition under which Accelerate's variable of a setting is set in the workers' environment.
/// `given`: if the value is not the default.
enum class Export { never, given, always, when_true };

/// Spelling of the value in Accelerate's variable. `python_bool`: True or False; `digit`: 1 or 0.
enum class TextFormat { as_given, lower, upper, python_bool, digit };

class Settings;
struct SettingRow;
struct ShardingSettings;
struct TrainingFields;

/// Field of a plugin that a setting fills in, or that a program sets instead.
struct PluginField {
  std::string_view name = {};  ///< empty: the key without `fsdp_`
  std::string_view mode = {};  ///< mode of the plugin: `fsdp` or `deepspeed`; empty: both have it
  void (*read)(const Settings& settings, const SettingRow& row, TrainingFields& plugin) = nullptr;
  std::optional<std::string> (*text)(const TrainingFields& plugin) = nullptr;
  /// The address of the field: a plugin's fields are listed in the order of their declaration.
  const void* (*place)(const TrainingFields& plugin) = nullptr;
};

/// Member of ShardingSettings that a setting fills in.
struct EngineField {
  std::string_view term = {};  ///< name in the message if ranks differ; empty: they may
  void (*read)(const Settings& settings, const SettingRow& row,
               ShardingSettings& sharding) = nullptr;
  std::string (*text)(const ShardingSettings& sharding) = nullptr;
  /// The value as a configuration file has it.
  std::string (*setting)(const ShardingSettings& sharding) = nullptr;
};

/// A setting without a counterpart in another form of the configuration.
struct Loss {
  std::string_view reason = {};  ///< second half of the warning; empty: there is a counterpart
  /// Value whose loss changes nothing, because the other form always does this; absent: the
  /// default.
  std::optional<std::string_view> quiet = {};
};

/// One setting. All code that reads, writes, checks or describes a setting uses its row: flags,
/// YAML and JSON files, environment variables, `--help`, `explain` and the pages in docs/; fields
/// of plugins, the settings of the runtime, and what ranks and machines must agree on.
struct SettingRow {
  Section section = Section::launch;
  std::string_view key = {};  ///< flag and YAML key, with underscores
  Group group = Group::launch;
  std::string_view alias = {};  ///< further names of the flag, joined by `|`
  Flag flag = Flag::none;
  bool in_file = true;            ///< the YAML file may contain it
  std::string_view block = {};    ///< its block there, if that is not the section's
  std::string_view old_key = {};  ///< further name there, of earlier versions of Accelerate
  /// Accelerate 1.15 writes the key and does not read it: it takes the default of the flag instead.
  bool hidden_from_accelerate = false;
  Type type = Type::text;
  std::string_view fallback = {};  ///< default value; empty: unset
  std::string_view allowed = {};   ///< choices joined by `|`, or a range `LOW..[HIGH]`
  /// Accelerate's environment variable; empty if it has none. For a list it may be several names
  /// joined by `|`, one per item.
  std::string_view environment = {};
  Export exported = Export::never;
  TextFormat format = TextFormat::as_given;
  /// Variable from which every front end of the launcher reads a flag that is not given.
  std::string_view variable = {};
  std::string_view json = {};  ///< path in the DeepSpeed JSON file
  std::string_view unit = {};
  std::string_view help = {};
  /// Local paths, and options that select machines: the only settings of the sharding mode that may
  /// differ between machines.
  bool of_one_machine = false;
  std::string_view of_several = {};  ///< size that must be above 1 for this to have a meaning
  std::string_view needs = {};       ///< setting that must be true if this one is
  std::string_view folder_of = {};   ///< setting whose value nvme needs this folder
  bool needs_stage_3 = false;        ///< below ZeRO stage 3 only the default is allowed
  bool true_in_stage_3 = false;      ///< its default: true with ZeRO stage 3, else false
  bool program_fills_in = false;     ///< if it is "auto" in the DeepSpeed JSON file
  Loss lost_in_deepspeed = {};
  Loss lost_in_fsdp = {};   ///< what DeepSpeed has and FSDP has not
  Loss lost_in_fsdp1 = {};  ///< what the other version of FSDP has
  Loss lost_in_fsdp2 = {};
  PluginField plugin = {};
  EngineField engine = {};
};

/// Name of a setting of some table. A literal is written `"num_processes"_key`, with the operator
/// of the namespace that owns the table, and does not compile if no row has this name. A name that
/// a user gives is looked up with `find_setting` instead.
class SettingKey {
 public:
  /// For `operator""_key`. `exists`: a row has this name.
  consteval SettingKey(std::string_view name, bool exists) : name_(name) {
    if (!exists) {
      throw "no setting has this name";
    }
  }
  constexpr SettingKey(const SettingRow& row) noexcept : name_(row.key) {}  // NOLINT: implicit

  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }
  [[nodiscard]] std::string text() const { return std::string(name_); }

  friend constexpr bool operator==(SettingKey a, SettingKey b) noexcept = default;

 private:
  std::string_view name_;
};

/// Returns the settings that launcher and workers share: those of Accelerate's configuration and
/// acclaunch's own. Static data.
std::span<const SettingRow> settings_table() noexcept;

/// Returns the row of `key`, or nullptr. A dash in `key` counts as an underscore.
const SettingRow* find_setting(std::string_view key,
                               std::span<const SettingRow> table = settings_table()) noexcept;

/// Returns `ACC_<KEY>`, acclaunch's own variable for a setting. It carries the value to the workers
/// if Accelerate has no variable for it, or if Accelerate's variable must keep the value that
/// Accelerate itself would write.
std::string own_variable(const SettingRow& row);

/// True if the setting can be passed on to the workers. False if only the launcher uses it.
bool reaches_workers(const SettingRow& row) noexcept;

/// Describes the valid values of a row, for messages and help: `an integer 0..3`.
std::string expected_value(const SettingRow& row);

/// Returns the candidate that is most similar to `word`; empty if none is similar.
std::string closest(std::string_view word, std::span<const std::string_view> candidates);

/// Returns `; did you mean "x"?`, or an empty text.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

/// True if `key` equals `pattern`. A trailing `*` in the pattern matches any text.
bool matches(std::string_view key, std::string_view pattern) noexcept;

/// Returns the block of Accelerate's file that holds a section: `fsdp_config`. Empty if the section
/// is at the top level or not in the file.
constexpr std::string_view block_of(Section section) noexcept {
  switch (section) {
    case Section::training:
    case Section::deepspeed: return "deepspeed_config";
    case Section::fsdp: return "fsdp_config";
    case Section::parallelism: return "parallelism_config";
    case Section::dynamo: return "dynamo_config";
    case Section::fp8: return "fp8_config";
    case Section::launch:
    case Section::zero: break;
  }
  return {};
}

/// The same for one setting.
constexpr std::string_view block_of(const SettingRow& row) noexcept {
  return row.block.empty() ? block_of(row.section) : row.block;
}

/// True if the setting is a key at the top level of Accelerate's file.
constexpr bool is_top_level(const SettingRow& row) noexcept {
  return row.in_file && row.section == Section::launch && row.block.empty();
}

}  // namespace acc::settings
