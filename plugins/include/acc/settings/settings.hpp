// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/text.hpp"
#include "acc/settings/settings_table.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::settings {

/// Origin of a value. The kinds are in ascending order of precedence in the launcher.
struct Source {
  /// `job`: from the job manager that started the launcher, such as Slurm. `program`: from a plugin
  /// that a worker's program filled in; it replaces the values that the launcher passed on.
  enum class Kind { default_value, environment, file, deepspeed_file, derived, job, flag, program };

  Kind kind = Kind::default_value;
  /// `config.yaml:12`, `--zero_stage`, the name of a variable or plugin field, or the reason why a
  /// value was derived.
  std::string where;

  bool operator==(const Source&) const = default;
};

/// Returns the text that `acclaunch explain` prints for a source: `default`, or the place.
std::string describe(const Source& source);

/// Throws Error(config) if `text` is not a valid value of `row`. The message names the source, the
/// key, the expected and the found value.
void check_value(const SettingRow& row, std::string_view text, const Source& source);

/// The text and the source of every setting of a table: the settings table, or the table of another
/// command line. The text is stored as it was given, because Accelerate passes it on unchanged; the
/// typed getters parse it. A getter throws Error(internal) for a key of another table, which is a
/// bug of the caller.
class Settings {
 public:
  explicit Settings(std::span<const SettingRow> table = settings_table());

  [[nodiscard]] std::span<const SettingRow> table() const noexcept { return table_; }

  /// Checks and stores a value; replaces an earlier one, whatever its source. Throws Error(config)
  /// that names the source, the key, the expected and the found value.
  void set(SettingKey key, std::string text, Source source);

  /// As `set`, for a name that a user gives. Throws Error(config) for an unknown one, with the most
  /// similar known one.
  void set_named(std::string_view name, std::string text, Source source);

  /// Restores the default.
  void reset(SettingKey key);

  /// True if the setting has a value, which may be its default.
  [[nodiscard]] bool has(SettingKey key) const;
  /// True if the value has a source other than the default.
  [[nodiscard]] bool given(SettingKey key) const;

  [[nodiscard]] const std::string& text(SettingKey key) const;
  [[nodiscard]] const Source& source(SettingKey key) const;
  [[nodiscard]] bool boolean(SettingKey key) const;
  [[nodiscard]] std::int64_t integer(SettingKey key) const;  ///< for integers and counts
  [[nodiscard]] double real(SettingKey key) const;
  [[nodiscard]] std::int64_t size(SettingKey key) const;  ///< in bytes
  [[nodiscard]] std::chrono::milliseconds duration(SettingKey key) const;
  [[nodiscard]] std::string choice(SettingKey key) const;             ///< in the table's spelling
  [[nodiscard]] std::vector<std::string> list(SettingKey key) const;  ///< blanks trimmed
  /// Returns the value in the spelling in which equal values are equal texts: `True` and `1` are
  /// one, as are `FULL_SHARD` and its number.
  [[nodiscard]] std::string canonical(SettingKey key) const;

 private:
  struct Entry {
    std::string text;
    Source source;
  };
  [[nodiscard]] std::size_t index(SettingKey key) const;

  std::span<const SettingRow> table_;  // refers to static data
  std::vector<Entry> entries_;         // one per row of the table, same order
};

// The parsers return nullopt for a text that is not such a value.

/// Accepts the words of Python's strtobool: y yes t true on 1 / n no f false off 0, in any case.
std::optional<bool> parse_boolean(std::string_view text);
/// Accepts an integer, or a floating-point number without a fraction such as `5e8`.
std::optional<std::int64_t> parse_count(std::string_view text);
std::optional<double> parse_real(std::string_view text);
/// Returns bytes. Accepts an integer without a unit, or with B, KiB, MiB, GiB or TiB in any case.
std::optional<std::int64_t> parse_size(std::string_view text);
/// Accepts a number with ms, s, min, h or d. Only 0 needs no unit.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

}  // namespace acc::settings
