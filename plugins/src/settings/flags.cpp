// SPDX-License-Identifier: Apache-2.0
// Parser of command lines. It reads arguments up to the first one that is no flag, which is
// PROGRAM; everything after that belongs to the program. Values are stored as text and are checked
// where the settings are made.
#include "acc/settings/flags.hpp"

#include "acc/base/text.hpp"

#include <algorithm>
#include <optional>

namespace acc::settings {
namespace {

/// Returns the key of a flag's name: `-` and `_` are equivalent.
std::string canonical(std::string_view name) {
  std::string key(name);
  std::ranges::replace(key, '-', '_');
  return key;
}

/// Returns the reason why the table rejects a flag of the original program, or "".
std::string_view refusal_of(const FlagTable& flags, const std::string& key) {
  const auto found = std::ranges::find_if(
      flags.refused, [&](const RefusedFlag& flag) { return matches(key, flag.key); });
  return found == flags.refused.end() ? std::string_view() : found->reason;
}

/// Returns the row with this key or alias, or nullptr.
const SettingRow* flag_row(const FlagTable& flags, std::string_view key) {
  for (const SettingRow& row : flags.table) {
    const auto aliases = split(row.alias, '|');
    if (row.flag != Flag::none &&
        (row.key == key || std::ranges::find(aliases, key) != aliases.end())) {
      return &row;
    }
  }
  return nullptr;
}

std::vector<std::string_view> long_flags(const FlagTable& flags) {
  std::vector<std::string_view> keys = {"help", "version"};
  for (const SettingRow& row : flags.table) {
    if (row.flag != Flag::none) {
      keys.push_back(row.key);
    }
  }
  return keys;
}

/// Returns the long flags that begin with `key`.
std::vector<std::string> completions(const FlagTable& flags, const std::string& key) {
  std::vector<std::string> found;
  for (const std::string_view flag : long_flags(flags)) {
    if (flag.starts_with(key)) {
      found.emplace_back(flag);
    }
  }
  return found;
}

/// Returns the flag that was probably meant: the one with the most similar spelling, else the only
/// one that begins with `key`; "" if there is none.
std::string probably_meant(const FlagTable& flags, const std::string& key) {
  std::string nearest = closest(key, long_flags(flags));
  const auto longer = completions(flags, key);
  return nearest.empty() && longer.size() == 1 ? longer.front() : nearest;
}

std::string unknown_flag(const FlagTable& flags, const std::string& key,
                         const std::string& written) {
  const std::string nearest = probably_meant(flags, key);
  return "unknown flag " + written +
         (nearest.empty() ? "; --help lists them all"
                          : "; did you mean " + as_typed(flags, nearest) + "?");
}

/// Reads one command line. Collects faults and continues, so that all are reported.
class Parser {
 public:
  Parser(const FlagTable& flags, std::span<const std::string> rest) : flags_(flags), rest_(rest) {}

  ParsedFlags parse() {
    while (!rest_.empty() && result_.program.empty()) {
      const std::string argument = take();
      if (!flags_.takes_program && !argument.starts_with('-')) {
        result_.faults.add("unexpected word \"" + printable(argument) +
                           "\"; --help lists the flags");
        continue;
      }
      if (argument == "--") {
        if (!rest_.empty()) {
          result_.program = take();
        }
        break;
      }
      if (argument.empty()) {
        result_.faults.add("empty argument where a flag or PROGRAM is expected");
        break;
      }
      if (argument.size() > 1 && argument.starts_with('-')) {
        result_.own_arguments.push_back(argument);
        argument.starts_with("--") ? read_long_flag(argument) : read_letters(argument);
      } else {
        result_.program = argument;
        skip_separator();
      }
      if (result_.wants_help || result_.wants_version) {
        return result_;
      }
    }
    result_.arguments.assign(rest_.begin(), rest_.end());
    return result_;
  }

 private:
  std::string take() {
    std::string first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }

  /// Drops `--` directly after PROGRAM, as argparse does, unless one was already before PROGRAM.
  void skip_separator() {
    if (!rest_.empty() && rest_.front() == "--") {
      take();
    }
  }

  /// Reads `--flag`, `--flag=value` or `--flag value`, abbreviated if the table allows it. An
  /// exact or rejected flag wins over longer flags that begin with it.
  void read_long_flag(const std::string& argument) {
    const auto equals = argument.find('=');
    const std::string written = argument.substr(0, equals);
    std::string key = canonical(std::string_view(written).substr(2));
    const SettingRow* row = flag_row(flags_, key);
    const bool may_be_short =
        flags_.abbreviates && row == nullptr && refusal_of(flags_, key).empty();
    const auto longer = may_be_short ? completions(flags_, key) : std::vector<std::string>();
    if (longer.size() == 1) {
      key = longer.front();
      row = flag_row(flags_, key);
    }
    if (key == "help" || key == "version") {
      (key == "help" ? result_.wants_help : result_.wants_version) = true;
    } else if (row != nullptr) {
      add_value(
          *row, written,
          equals == std::string::npos ? std::nullopt : std::optional(argument.substr(equals + 1)));
    } else {
      result_.faults.add(why_not(key, written, longer));
      skip_value(key, equals == std::string::npos);
    }
  }

  /// Skips the value of an unknown flag if the flag that was probably meant takes one, and always
  /// if no program can follow. Otherwise the value would be taken for PROGRAM, and faults in later
  /// flags would not be found.
  void skip_value(const std::string& key, bool may_follow) {
    const SettingRow* meant = flag_row(flags_, probably_meant(flags_, key));
    const bool has_value =
        !flags_.takes_program || (meant != nullptr && meant->flag == Flag::value);
    if (may_follow && has_value && !rest_.empty() && !rest_.front().starts_with('-')) {
      take();
    }
  }

  [[nodiscard]] std::string why_not(const std::string& key, const std::string& written,
                                    const std::vector<std::string>& longer) const {
    if (const auto reason = refusal_of(flags_, key); !reason.empty()) {
      return written + ": " + std::string(reason);
    }
    if (longer.empty()) {
      return unknown_flag(flags_, key, written);
    }
    std::string text = written + " is ambiguous:";
    for (const std::string& flag : longer) {
      text += (&flag == &longer.front() ? " " : " or ") + as_typed(flags_, flag);
    }
    return text;
  }

  /// Reads short flags: `-m`, `-t 3`, `-t3`, `-mt3`.
  void read_letters(const std::string& argument) {
    for (std::size_t i = 1; i < argument.size(); ++i) {
      const SettingRow* found = flag_row(flags_, argument.substr(i, 1));
      if (argument[i] == 'h') {
        result_.wants_help = true;
        return;
      }
      if (found == nullptr) {
        result_.faults.add(unknown_flag(flags_, canonical(argument.substr(1)), argument));
        return;
      }
      const SettingRow& row = *found;
      const std::string written = {'-', argument[i]};
      if (row.flag == Flag::toggle) {
        add_value(row, written, std::nullopt);
        continue;
      }
      const std::string rest = argument.substr(i + 1);
      add_value(row, written,
                rest.empty() ? std::nullopt : std::optional(rest.substr(rest.starts_with('='))));
      return;
    }
  }

  void add_value(const SettingRow& row, const std::string& written,
                 const std::optional<std::string>& text) {
    const std::string key(row.key);
    if (row.flag == Flag::deniable_toggle && !text) {
      result_.values.push_back({key, take_denial(), written});
      return;
    }
    if (row.flag == Flag::toggle) {
      if (text) {
        result_.faults.add(written + " takes no value, got \"" + printable(*text) + "\"");
      }
      result_.values.push_back({key, "true", written});
    } else if (text) {
      result_.values.push_back({key, *text, written});
    } else if (rest_.empty()) {
      result_.faults.add(written + " needs a value: " + expected_value(row));
    } else {
      result_.own_arguments.push_back(rest_.front());
      result_.values.push_back({key, take(), written});
    }
  }

  /// Consumes the next argument if it is `true` or `false`; otherwise returns `true`.
  std::string take_denial() {
    const std::string next = rest_.empty() ? "" : lower(rest_.front());
    if (next != "true" && next != "false") {
      return "true";
    }
    result_.own_arguments.push_back(rest_.front());
    return take();
  }

  const FlagTable& flags_;
  std::span<const std::string> rest_;
  ParsedFlags result_;
};

}  // namespace

const ParsedFlags::Value* ParsedFlags::find(SettingKey key) const {
  const auto found = std::find_if(values.rbegin(), values.rend(),
                                  [&](const Value& v) { return v.key == key.name(); });
  return found == values.rend() ? nullptr : &*found;
}

ParsedFlags parse_flags(const FlagTable& flags, std::span<const std::string> arguments) {
  return Parser(flags, arguments).parse();
}

std::string as_typed(const FlagTable& flags, std::string_view key) {
  std::string text = "--" + std::string(key);
  std::ranges::replace(text, '_', flags.separator);
  return text;
}

std::string help_entry(const FlagTable& flags, const SettingRow& row) {
  std::string line = "  " + as_typed(flags, row.key);
  for (const std::string_view alias : split(row.alias, '|')) {
    line += ", " + (alias.size() == 1 ? "-" + std::string(alias) : as_typed(flags, alias));
  }
  line += row.flag == Flag::value ? " VALUE" : "";
  line += line.size() < kHelpColumn ? std::string(kHelpColumn - line.size(), ' ')
                                    : "\n" + std::string(kHelpColumn, ' ');
  line += std::string(row.help);
  if (row.flag == Flag::value && row.type != Type::text) {
    line += " (" + expected_value(row) + ")";
  }
  if (row.flag == Flag::value && !row.fallback.empty()) {
    line += " [" + std::string(row.fallback) + "]";
  }
  return line + "\n";
}

}  // namespace acc::settings
