#pragma once

#include "acc/plugins/settings_table.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::plugins {

/// Where a value came from. Kinds are in the launcher's rising order of precedence.
struct Source {
  /// `job`: what the manager of jobs says that the launcher was started by. `program`: what a
  /// worker's program says, over all that its launcher injected.
  enum class Kind { default_value, environment, file, deepspeed_file, derived, job, flag, program };

  Kind kind = Kind::default_value;
  /// `config.yaml:12`, `--zero_stage`, the variable's name, the plugin's field, or why a value was
  /// derived.
  std::string where;

  bool operator==(const Source&) const = default;
};

/// `default`, or the place: what `explain` prints.
std::string describe(const Source& source);

/// Throws Error(config) naming where, key, the expected and the found value, unless a row of some
/// table may have this value.
void check_value(const SettingRow& row, std::string_view text, const Source& source);

/// The value text and source of every row of a table: the settings table, or that of another
/// command line. Text is kept as it was given, since Accelerate hands it on so; the typed getters
/// read it. Unknown keys passed to a getter are a mistake of ours and throw Error(internal).
class Settings {
 public:
  explicit Settings(std::span<const SettingRow> table = settings_table());

  [[nodiscard]] std::span<const SettingRow> table() const noexcept { return table_; }

  /// Checks and stores a value, whatever was there. Throws Error(config) naming where, key, the
  /// expected and the found value; for an unknown key also the nearest known one.
  void set(std::string_view key, std::string text, Source source);

  /// Back to the default.
  void reset(std::string_view key);

  [[nodiscard]] bool has(std::string_view key) const;    ///< a value, be it the default
  [[nodiscard]] bool given(std::string_view key) const;  ///< a value that is not the default

  [[nodiscard]] const std::string& text(std::string_view key) const;
  [[nodiscard]] const Source& source(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::int64_t integer(std::string_view key) const;  ///< of integers and counts
  [[nodiscard]] double real(std::string_view key) const;
  [[nodiscard]] std::int64_t size(std::string_view key) const;  ///< in bytes
  [[nodiscard]] std::chrono::milliseconds duration(std::string_view key) const;
  [[nodiscard]] std::string choice(std::string_view key) const;  ///< as the table spells it
  [[nodiscard]] std::vector<std::string> list(std::string_view key) const;  ///< blanks trimmed

 private:
  struct Entry {
    std::string text;
    Source source;
  };
  [[nodiscard]] std::size_t index(std::string_view key) const;

  std::span<const SettingRow> table_;  // lives as long as the program
  std::vector<Entry> entries_;         // one per row of the table, same order
};

/// Python's words: y yes t true on 1 / n no f false off 0 in any letter case.
std::optional<bool> parse_boolean(std::string_view text);
std::optional<std::int64_t> parse_integer(std::string_view text);
/// An integer, or a float text without fraction such as `5e8`.
std::optional<std::int64_t> parse_count(std::string_view text);
std::optional<double> parse_real(std::string_view text);
/// Bytes: a whole number, with B, KiB, MiB, GiB or TiB in any letter case or without a unit.
std::optional<std::int64_t> parse_size(std::string_view text);
/// A number with ms, s, min, h or d. Without a unit 0 alone.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
std::string lower(std::string_view text);
std::string upper(std::string_view text);
/// Without blanks and tabs at either end.
std::string_view trimmed(std::string_view text);

}  // namespace acc::plugins
