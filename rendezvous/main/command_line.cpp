#include "command_line.hpp"

#include "settings.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace acc::rendezvous {
namespace {

using plugins::SettingRow;

struct ActionFlag {
  Action action;
  std::string_view name;
  std::string_view letter;
  std::string_view help;
};

constexpr std::array kActions = {
    ActionFlag{Action::print_config, "print_config", "",
               "print every setting with its value and its source"},
    ActionFlag{Action::print_settings_table, "print_settings_table", "",
               "print the table of docs/rendezvous.md"},
    ActionFlag{Action::version, "version", "", "print the version"},
    ActionFlag{Action::help, "help", "h", "print this help"},
};

/// One argument that begins with `-`.
struct Word {
  std::string written;               // as the user wrote it, without the value: "--max-keys"
  std::string name;                  // in the spelling of the table: "max_keys"
  std::optional<std::string> value;  // the part after `=`
};

Word take_apart(const std::string& argument) {
  const auto equals = argument.find('=');
  Word word{argument.substr(0, equals), {}, {}};
  word.name = word.written.substr(argument.starts_with("--") ? 2 : 1);
  std::ranges::replace(word.name, '-', '_');
  if (equals != std::string::npos) {
    word.value = argument.substr(equals + 1);
  }
  return word;
}

bool is_long(const Word& word) {
  return word.written.starts_with("--");
}

/// Finds the setting of a flag; null if there is none.
const SettingRow* setting_of(const Word& word) {
  const auto rows = kDaemonSettings;
  const auto found =
      std::ranges::find(rows, word.name, is_long(word) ? &SettingRow::key : &SettingRow::alias);
  return found == rows.end() || word.name.empty() ? nullptr : &*found;
}

const ActionFlag* action_of(const Word& word) {
  const auto* found = std::ranges::find(kActions, word.name,
                                        is_long(word) ? &ActionFlag::name : &ActionFlag::letter);
  return found == kActions.end() || word.name.empty() ? nullptr : found;
}

std::string unknown_flag(const Word& word) {
  std::vector<std::string_view> names;
  for (const SettingRow& row : kDaemonSettings) {
    names.push_back(row.key);
  }
  for (const ActionFlag& flag : kActions) {
    names.push_back(flag.name);
  }
  const std::string nearest = plugins::closest(word.name, names);
  return "unknown flag " + word.written +
         (nearest.empty() ? "; --help lists them all" : "; did you mean --" + nearest + "?");
}

// Column where the descriptions of --help begin.
constexpr std::size_t kHelpColumn = 30;

std::string help_line(std::string flag, std::string_view help) {
  flag = "  " + flag;
  flag.resize(std::max(flag.size() + 1, kHelpColumn), ' ');
  return flag + std::string(help) + "\n";
}

/// Second line of a setting in --help: the values that it accepts and its default.
std::string value_line(const SettingRow& row) {
  return std::string(kHelpColumn, ' ') + plugins::expected_value(row) +
         (row.fallback.empty() ? "" : " [" + std::string(row.fallback) + "]") + "\n";
}

std::string flag_names(std::string_view name, std::string_view letter) {
  return "--" + std::string(name) + (letter.empty() ? "" : ", -" + std::string(letter));
}

}  // namespace

CommandLine read_command_line(std::span<const std::string> arguments) {
  CommandLine line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with('-')) {
      line.faults.add("unexpected word \"" + arguments[i] + "\"; --help lists the flags");
      continue;
    }
    const Word word = take_apart(arguments[i]);
    if (const ActionFlag* flag = action_of(word)) {
      line.action = flag->action;
      if (word.value) {
        line.faults.add(word.written + " takes no value, got \"" + *word.value + "\"");
      }
      continue;
    }
    const SettingRow* row = setting_of(word);
    if (row == nullptr) {
      line.faults.add(unknown_flag(word));
      // The next word is most likely the value of the unknown flag: reporting it, too, would
      // confuse.
      i += !word.value && i + 1 < arguments.size() && !arguments[i + 1].starts_with('-') ? 1 : 0;
    } else if (word.value) {
      line.values.push_back({std::string(row->key), *word.value, word.written});
    } else if (i + 1 == arguments.size()) {
      line.faults.add(word.written + " needs a value: " + plugins::expected_value(*row));
    } else {
      line.values.push_back({std::string(row->key), arguments[++i], word.written});
    }
  }
  return line;
}

std::string help_text() {
  std::string text =
      "usage: acc-rendezvous [FLAGS]\n\n"
      "Rendezvous server for distributed training: serves PyTorch's TCPStore protocol and forms\n"
      "the rounds of elastic jobs. A setting is taken from its flag, else from the environment\n"
      "variable ACC_RENDEZVOUS_<NAME>, else from the file, else it is the default in brackets.\n\n";
  for (const SettingRow& row : kDaemonSettings) {
    text += help_line(flag_names(row.key, row.alias) + " VALUE", row.help) + value_line(row);
  }
  text += "\n";
  for (const ActionFlag& flag : kActions) {
    text += help_line(flag_names(flag.name, flag.letter), flag.help);
  }
  return text;
}

}  // namespace acc::rendezvous
