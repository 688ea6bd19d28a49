// SPDX-License-Identifier: Apache-2.0
// The rendezvous compares these terms between machines and refuses a machine that differs. Without
// this check, ranks with different strategies or group sizes would wait for each other in
// collectives that never match.
#include "plan/agreed_terms.hpp"

#include "acc/base/hash.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "host/own_variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

namespace acc::launcher::plan {
namespace {

using settings::Section;
using settings::SettingRow;
using Terms = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kMaxValueBytes = 4096;  // limit of rendezvous::Terms::agreed

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

/// The program that a command runs, and the words behind it.
struct ProgramWords {
  std::string program;  ///< without its folder
  std::span<const std::string> arguments;
};

/// An interpreter and its options of one letter that take a value.
struct Interpreter {
  std::string_view name;
  std::string_view options;
};
constexpr std::array kInterpreters = {Interpreter{"python", "XW"}, Interpreter{"sh", "oO"},
                                      Interpreter{"bash", "oO"},   Interpreter{"dash", "oO"},
                                      Interpreter{"ksh", "oO"},    Interpreter{"zsh", "oO"}};

/// Returns the interpreter with the name of an executable, with any version of Python; null if it
/// is another program.
const Interpreter* interpreter_named(std::string_view name) {
  const auto version = name.find_last_not_of("0123456789.");
  name = name.substr(0, name.starts_with("python") ? version + 1 : name.size());
  const auto* const found = std::ranges::find(kInterpreters, name, &Interpreter::name);
  return found == kInterpreters.end() ? nullptr : found;
}

/// Splits a command: the module of `python3 -u -m MODULE`, the script of `python3 FOLDER/SCRIPT` or
/// `bash SCRIPT`, the interpreter itself with `-c TEXT`, else the executable. The path and the
/// version of an interpreter and its options do not matter.
ProgramWords split_command(const std::vector<std::string>& command) {
  const std::span words(command);
  const std::string executable = file_name(command.front());
  const Interpreter* const interpreter = interpreter_named(executable);
  if (interpreter == nullptr) {
    return {executable, words.subspan(1)};
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "-m" && i + 1 < words.size() && interpreter->name == "python") {
      return {words[i + 1], words.subspan(i + 2)};
    }
    if (!word.starts_with('-') || word == "-") {
      return {file_name(word), words.subspan(i + 1)};
    }
    if (word.starts_with("--")) {
      continue;
    }
    // Options may stand together, as in `bash -euo pipefail`, and a value may be attached.
    const auto with_value = word.find_first_of(interpreter->options, 1);
    if (word.find('c', 1) < with_value) {
      return {std::string(interpreter->name), words.subspan(i)};  // -c, or -lc of a shell
    }
    i += with_value == word.size() - 1 ? 1 : 0;
  }
  return {std::string(interpreter->name), words.subspan(1)};
}

/// Flags of programs that have another value on each machine, as the launchers' own flags of these
/// names have.
constexpr std::array<std::string_view, 3> kFlagsOfOneMachine = {"machine_rank", "node_rank",
                                                                "local_addr"};

bool is_flag_of_one_machine(std::string_view word) {
  if (!word.starts_with('-')) {
    return false;
  }
  std::string name(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  std::ranges::replace(name, '-', '_');
  return std::ranges::find(kFlagsOfOneMachine, name) != kFlagsOfOneMachine.end();
}

/// Returns the arguments as a shell reads them, with `*` for values of one machine.
std::string text_of(std::span<const std::string> arguments) {
  std::string text;
  bool is_value = false;
  for (const std::string& word : arguments) {
    const auto equals = word.find('=');
    const bool has_value =
        equals != std::string::npos && is_flag_of_one_machine(word.substr(0, equals));
    text += text.empty() ? "" : " ";
    text += is_value ? "*" : has_value ? word.substr(0, equals) + "=*" : shell_quoted(word);
    is_value = !is_value && is_flag_of_one_machine(word);
  }
  return text;
}

/// True if the setting has to be equal on all machines in this mode.
bool must_agree(const SettingRow& row, Mode mode) {
  switch (row.section) {
    case Section::launch: return row.engine.read != nullptr;
    case Section::dynamo:
    case Section::fp8: return false;  // local to each rank
    default: break;
  }
  return settings::applies(row.section, origin_of(mode)) && !row.of_one_machine;
}

/// Shortens a value that exceeds the rendezvous' limit. Its length and its hash stay in the text,
/// so that differing values still differ.
std::string bounded(std::string value) {
  if (value.size() <= kMaxValueBytes) {
    return value;
  }
  const std::string rest = fmt::format("... ({} bytes, hash {:016x})", value.size(), fnv1a(value));
  return value.substr(0, kMaxValueBytes - rest.size()) + rest;
}

void add_settings(const settings::Settings& settings, Mode mode, Terms& terms) {
  for (const SettingRow& row : settings.table()) {
    if (must_agree(row, mode) && settings.has(row)) {
      terms.emplace_back((row.flag == settings::Flag::none ? "" : "--") + std::string(row.key),
                         bounded(settings.canonical(row)));
    }
  }
}

/// Adds the sharding itself. Used if the settings table has no value, because the settings came
/// from variables or are all defaults.
void add_sharding(const settings::ShardingSettings& sharding, Terms& terms) {
  terms.emplace_back("the strategy", settings::to_string(sharding.strategy));
  terms.emplace_back("shard groups of", std::to_string(sharding.shard_size));
  terms.emplace_back("mixed precision", settings::to_string(sharding.mixed_precision));
  terms.emplace_back("gradient accumulation steps of", std::to_string(sharding.micro_steps()));
}

}  // namespace

Terms agreed_terms(const LaunchPlan& plan) {
  Terms terms;
  if (!plan.command.empty()) {
    const ProgramWords words = split_command(plan.command);
    terms.emplace_back("the program", bounded(words.program));
    if (plan.rendezvous.compares_arguments) {
      terms.emplace_back("the arguments", bounded(text_of(words.arguments)));
    }
  }
  terms.emplace_back("the device", settings::to_string(plan.device));
  terms.emplace_back("the engine",
                     host::value_of(plan.variables.set, host::variables.engine, "torch"));
  const auto order = plan.variables.set.find(kDataOrderVariable);
  terms.emplace_back("the data order", order == plan.variables.set.end() ? "torch" : order->second);
  if (plan.supervision.rejoins) {
    terms.emplace_back(plan.supervision.elastic_replicas ? "--elastic_replicas" : "--rejoin",
                       "true");
  }
  terms.emplace_back("the sharding mode", origin_of(plan.mode));
  const std::size_t before = terms.size();
  add_settings(plan.settings, plan.mode, terms);
  if (plan.file_settings) {
    add_settings(*plan.file_settings, plan.mode, terms);
  }
  if (terms.size() == before && (plan.mode == Mode::fsdp || plan.mode == Mode::deepspeed)) {
    add_sharding(plan.sharding, terms);
  }
  return terms;
}

}  // namespace acc::launcher::plan
