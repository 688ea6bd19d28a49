#include "acc/base/error.hpp"
#include "acc/launcher/face.hpp"
#include "acc/plugins/settings.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

using plugins::SettingRow;

std::string canonical(std::string_view name) {
  std::string key(name);
  std::ranges::replace(key, '-', '_');
  return key;
}

void refuse_by_name(const Face& face, const std::string& key, const std::string& written) {
  for (const auto& [pattern, reason] : face.refused) {
    const bool any_rest = pattern.ends_with('*');
    const std::string_view stem = pattern.substr(0, pattern.size() - (any_rest ? 1 : 0));
    if (any_rest ? key.starts_with(stem) : key == stem) {
      throw Error(Errc::invalid_argument, written + ": " + std::string(reason));
    }
  }
}

const SettingRow* flag_row(const Face& face, std::string_view key) {
  for (const SettingRow& row : face.table) {
    const auto aliases = plugins::split(row.alias, '|');
    if (row.flag != plugins::Flag::none &&
        (row.key == key || std::ranges::find(aliases, key) != aliases.end())) {
      return &row;
    }
  }
  return nullptr;
}

Error unknown_flag(const Face& face, const std::string& key, const std::string& written) {
  std::vector<std::string_view> known = {"help", "version"};
  for (const SettingRow& row : face.table) {
    if (row.flag != plugins::Flag::none) {
      known.push_back(row.key);
    }
  }
  const std::string nearest = plugins::closest(key, known);
  return Error(Errc::invalid_argument, "unknown flag " + written +
                                           (nearest.empty() ? "; --help lists them all"
                                                            : "; did you mean --" + nearest + "?"));
}

class Parser {
 public:
  Parser(const Face& face, std::span<const std::string> rest) : face_(face), rest_(rest) {}

  Flags parse() {
    while (!rest_.empty() && result_.program.empty()) {
      const std::string argument = take();
      if (argument == "--") {
        if (!rest_.empty()) {
          result_.program = take();
        }
        break;
      }
      if (argument.size() > 1 && argument.starts_with('-')) {
        result_.own_arguments.push_back(argument);
        read_flag(argument);
      } else {
        result_.program = argument;
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

  void read_flag(const std::string& argument) {
    const bool is_long = argument.starts_with("--");
    const auto equals = is_long ? argument.find('=') : std::string::npos;
    const std::string written = argument.substr(0, equals);
    const std::string key = is_long ? canonical(std::string_view(written).substr(2))
                                    : key_of_letter(std::string_view(written).substr(1));
    if (key == "help" || key == "version") {
      (key == "help" ? result_.wants_help : result_.wants_version) = true;
      return;
    }
    const SettingRow* row = flag_row(face_, key);
    if (row == nullptr) {
      refuse_by_name(face_, key, written);
      throw unknown_flag(face_, key, written);
    }
    add_value(*row, written, equals == std::string::npos ? nullptr : argument.c_str() + equals + 1);
  }

  [[nodiscard]] std::string key_of_letter(std::string_view text) const {
    const auto found = std::ranges::find(face_.short_flags, text.front(), &ShortFlag::letter);
    if (text == "h") {
      return "help";
    }
    return std::string(text.size() == 1 && found != face_.short_flags.end() ? found->key : text);
  }

  void add_value(const SettingRow& row, const std::string& written, const char* text) {
    const std::string key(row.key);
    if (row.flag == plugins::Flag::deniable_toggle && text == nullptr) {
      result_.values.push_back({key, take_denial(), written});
      return;
    }
    if (row.flag == plugins::Flag::toggle) {
      if (text != nullptr) {
        throw Error(Errc::invalid_argument, written + " takes no value, got \"" + text + "\"");
      }
      result_.values.push_back({key, "true", written});
      return;
    }
    if (text != nullptr) {
      result_.values.push_back({key, text, written});
      return;
    }
    if (rest_.empty()) {
      throw Error(Errc::invalid_argument,
                  written + " needs a value: " + plugins::expected_value(row));
    }
    result_.own_arguments.push_back(rest_.front());
    result_.values.push_back({key, take(), written});
  }

  /// The next word where it is `true` or `false`, else `true`.
  std::string take_denial() {
    const std::string next = rest_.empty() ? "" : plugins::lower(rest_.front());
    if (next != "true" && next != "false") {
      return "true";
    }
    result_.own_arguments.push_back(rest_.front());
    return take();
  }

  const Face& face_;
  std::span<const std::string> rest_;
  Flags result_;
};

std::string heading(plugins::Section section) {
  switch (section) {
    case plugins::Section::launch: return "Launch";
    case plugins::Section::training: return "Training, in every mode";
    case plugins::Section::fsdp: return "FSDP (with --use_fsdp or distributed_type: FSDP)";
    case plugins::Section::deepspeed:
      return "DeepSpeed (with --use_deepspeed or distributed_type: DEEPSPEED)";
    case plugins::Section::parallelism: return "Groups";
    case plugins::Section::dynamo: return "torch.compile in a Python program";
    case plugins::Section::fp8: return "fp8 in a Python program (with --mixed_precision fp8)";
    case plugins::Section::zero: break;
  }
  return {};
}

std::string help_entry(const SettingRow& row) {
  constexpr std::size_t kColumn = 44;
  std::string line = "  --" + std::string(row.key);
  for (const std::string_view alias : plugins::split(row.alias, '|')) {
    line += (alias.size() == 1 ? ", -" : ", --") + std::string(alias);
  }
  line += row.flag == plugins::Flag::value ? " VALUE" : "";
  line += line.size() < kColumn ? std::string(kColumn - line.size(), ' ')
                                : "\n" + std::string(kColumn, ' ');
  line += std::string(row.help);
  if (row.flag == plugins::Flag::value && row.type != plugins::Type::text) {
    line += " (" + plugins::expected_value(row) + ")";
  }
  if (row.flag == plugins::Flag::value && !row.fallback.empty()) {
    line += " [" + std::string(row.fallback) + "]";
  }
  return line + "\n";
}

}  // namespace

const Flags::Value* Flags::find(std::string_view key) const {
  const auto found =
      std::find_if(values.rbegin(), values.rend(), [&](const Value& v) { return v.key == key; });
  return found == values.rend() ? nullptr : &*found;
}

Flags parse_flags(const Face& face, std::span<const std::string> arguments) {
  return Parser(face, arguments).parse();
}

std::string help_text(const Face& face) {
  std::string text(face.usage);
  std::string last;
  for (const SettingRow& row : face.table) {
    if (row.flag == plugins::Flag::none) {
      continue;
    }
    if (const std::string title = heading(row.section); title != last) {
      text += "\n" + title + "\n";
      last = title;
    }
    text += help_entry(row);
  }
  return text + "\n  --help, -h    --version\n";
}

}  // namespace acc::launcher
