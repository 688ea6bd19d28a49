#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::plugins {

/// Which part of a configuration a setting belongs to: its YAML block, and in which mode it counts.
enum class Section {
  launch,       ///< top-level YAML key or plain flag
  training,     ///< `deepspeed_config` in YAML, yet in force in every mode
  fsdp,         ///< `fsdp_config`; its prefix `fsdp_` may be left out there
  deepspeed,    ///< `deepspeed_config`
  zero,         ///< known to the DeepSpeed JSON file alone
  parallelism,  ///< `parallelism_config`
  dynamo,       ///< `dynamo_config`; its prefix `dynamo_` may be left out there
  fp8,          ///< `fp8_config`; its prefix `fp8_` may be left out there
};

enum class Type {
  text,
  boolean,
  integer,
  count,
  real,
  size,      ///< bytes: `64MiB`
  duration,  ///< `500ms`, `2h`; 0 needs no unit
  choice,
  numbered_choice,
  list
};

/// How a setting is spelled on the command line. A toggle takes no value; one that can be denied
/// takes `=BOOLEAN`, or the next word where that is true or false.
enum class Flag { none, value, toggle, deniable_toggle };

/// When a setting is put into the workers' environment under the name that Accelerate uses.
enum class Export { never, given, always, when_true };

enum class TextFormat { as_given, lower, upper, python_bool, digit };

/// One row names a setting once, for everything that reads, writes, checks or describes it.
struct SettingRow {
  Section section = Section::launch;
  std::string_view key = {};    ///< flag and YAML key, with underscores
  std::string_view alias = {};  ///< further flag names, joined by `|`
  Flag flag = Flag::none;
  bool in_file = true;  ///< the YAML file may hold it
  Type type = Type::text;
  std::string_view fallback = {};  ///< default; empty: unset
  std::string_view allowed = {};   ///< choices joined by `|`, or a range `LOW..[HIGH]`
  /// Accelerate's variable; empty: it has none. Several joined by `|`: one for each of a list.
  std::string_view environment = {};
  Export exported = Export::never;
  TextFormat format = TextFormat::as_given;
  std::string_view json = {};  ///< path in the DeepSpeed JSON file
  std::string_view unit = {};
  std::string_view help = {};
};

/// The settings of Accelerate's configuration and ours: what launcher and workers share.
std::span<const SettingRow> settings_table() noexcept;

/// The row of `key` (dashes count as underscores), or nullptr.
const SettingRow* find_setting(std::string_view key,
                               std::span<const SettingRow> table = settings_table()) noexcept;

/// `ACC_<KEY>`: carries a setting to the workers where Accelerate has no variable for it, or where
/// its variable must keep what Accelerate itself would write.
std::string own_variable(const SettingRow& row);

/// Whether the setting can stand in a worker's environment; else it is the launcher's alone.
bool reaches_workers(const SettingRow& row) noexcept;

/// What a value of this row may be, in words for messages and help: `an integer 0..3`.
std::string expected_value(const SettingRow& row);

/// The candidate that `word` most likely meant, empty when none is near.
std::string closest(std::string_view word, std::span<const std::string_view> candidates);

/// ` (did you mean "x"?)`, or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

/// Whether `key` is what `pattern` says; a trailing `*` stands for any rest.
bool matches(std::string_view key, std::string_view pattern) noexcept;

/// The block of Accelerate's file that holds a section; empty: its top level, or none.
std::string_view block_of(Section section) noexcept;

/// `a|b` → {a, b}; empty text gives no part. The parts point into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);
std::vector<std::string_view> split(std::string&& text, char separator) = delete;

}  // namespace acc::plugins
