#include "acc/launcher/flags.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/settings_table.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace acc::launcher {
namespace {

using namespace std::string_view_literals;
using plugins::SettingRow;

/// Flags of Accelerate that acclaunch knows and does not do. A trailing `*` stands for any rest.
const std::map<std::string_view, std::string_view> kRefused = {
    {"tpu*", "TPUs are not supported"},
    {"no_tpu_cluster", "TPUs are not supported"},
    {"vm", "TPUs are not supported"},
    {"env", "TPUs are not supported"},
    {"main_training_function", "TPUs are not supported"},
    {"use_megatron_lm", "Megatron-LM is not supported"},
    {"megatron_lm_*", "Megatron-LM is not supported"},
    {"aws_*", "SageMaker is not supported"},
    {"fp8_*", "fp8 recipes are not supported"},
    {"mpirun_hostfile", "acclaunch starts the workers itself; leave mpirun out"},
    {"deepspeed_hostfile", "start acclaunch on every machine, with --machine_rank"},
    {"deepspeed_inclusion_filter", "start acclaunch on the machines that shall take part"},
    {"deepspeed_exclusion_filter", "start acclaunch on the machines that shall take part"},
    {"tee", "log files are not supported yet; redirect acclaunch's own output"},
    {"log_dir", "log files are not supported yet; redirect acclaunch's own output"},
};
constexpr std::array kShort = {std::pair{"m"sv, "module"sv}, std::pair{"q"sv, "quiet"sv},
                               std::pair{"t"sv, "tee"sv}, std::pair{"h"sv, "help"sv}};

std::string canonical(std::string_view name) {
  std::string key(name);
  std::ranges::replace(key, '-', '_');
  return key;
}

void refuse_by_name(const std::string& key, const std::string& written) {
  for (const auto& [pattern, reason] : kRefused) {
    const bool any_rest = pattern.ends_with('*');
    const std::string_view stem = pattern.substr(0, pattern.size() - (any_rest ? 1 : 0));
    if (any_rest ? key.starts_with(stem) : key == stem) {
      throw Error(Errc::invalid_argument, written + ": " + std::string(reason));
    }
  }
}

const SettingRow* flag_row(std::string_view key) {
  for (const SettingRow& row : plugins::settings_table()) {
    const auto aliases = plugins::split(row.alias, '|');
    if (row.flag != plugins::Flag::none &&
        (row.key == key || std::ranges::find(aliases, key) != aliases.end())) {
      return &row;
    }
  }
  return nullptr;
}

Error unknown_flag(const std::string& key, const std::string& written) {
  std::vector<std::string_view> known = {"help", "version"};
  for (const SettingRow& row : plugins::settings_table()) {
    if (row.flag != plugins::Flag::none) {
      known.push_back(row.key);
    }
  }
  const std::string nearest = plugins::closest(key, known);
  return Error(Errc::invalid_argument, "unknown flag " + written +
                                           (nearest.empty() ? "; acclaunch --help lists them all"
                                                            : "; did you mean --" + nearest + "?"));
}

class Parser {
 public:
  explicit Parser(std::span<const std::string> rest) : rest_(rest) {}

  Flags parse() {
    read_command();
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
      if (result_.command == Command::help || result_.command == Command::version) {
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

  void read_command() {
    static const std::map<std::string_view, Command> kCommands = {
        {"launch", Command::launch},
        {"explain", Command::explain},
        {"help", Command::help},
        {"environment-table", Command::environment_table},
        {"configuration-table", Command::configuration_table}};
    if (rest_.empty()) {
      return;
    }
    if (const auto found = kCommands.find(rest_.front()); found != kCommands.end()) {
      result_.command = found->second;
      take();
    }
  }

  void read_flag(const std::string& argument) {
    const bool is_long = argument.starts_with("--");
    const auto equals = is_long ? argument.find('=') : std::string::npos;
    const std::string written = argument.substr(0, equals);
    std::string key = canonical(std::string_view(written).substr(is_long ? 2 : 1));
    if (!is_long) {
      const auto* found = std::ranges::find(kShort, key, &decltype(kShort)::value_type::first);
      if (found == kShort.end()) {
        throw unknown_flag(key, written);
      }
      key = found->second;
    }
    if (key == "help" || key == "version") {
      result_.command = key == "help" ? Command::help : Command::version;
      return;
    }
    const SettingRow* row = flag_row(key);
    if (row == nullptr) {
      refuse_by_name(key, written);
      throw unknown_flag(key, written);
    }
    add_value(*row, written, equals == std::string::npos ? nullptr : argument.c_str() + equals + 1);
  }

  void add_value(const SettingRow& row, const std::string& written, const char* text) {
    const std::string key(row.key);
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

Flags parse_flags(std::span<const std::string> arguments) {
  return Parser(arguments).parse();
}

std::string help_text() {
  std::string text =
      "acclaunch starts the workers of a distributed training program and ends them together.\n\n"
      "  acclaunch [launch] [flags] PROGRAM [arguments of the program]\n"
      "  acclaunch explain [flags] PROGRAM     every setting, its value and where it came from\n\n"
      "Flags come before PROGRAM, may be spelled with - or _, and beat the file that\n"
      "--config_file names.\n";
  std::string last;
  for (const SettingRow& row : plugins::settings_table()) {
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
