// SPDX-License-Identifier: Apache-2.0
// The rendezvous compares these terms between machines and refuses a machine that differs. Without
// this check, ranks with different strategies or group sizes would wait for each other in
// collectives that never match.
#include "plan/agreed_terms.hpp"

#include "acc/base/error.hpp"
#include "acc/launcher/setting_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace acc::launcher::plan {
namespace {

using plugins::Section;
using plugins::SettingRow;
using plugins::Type;
using Terms = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kMaxValueBytes = 4096;  // limit of rendezvous::Terms::agreed

/// Settings that may differ between machines: local paths, and options that select machines.
constexpr std::array kOfOneMachine = {
    "offload_optimizer_nvme_path"_key, "offload_param_nvme_path"_key,
    "deepspeed_config_file"_key,       "deepspeed_multinode_launcher"_key,
    "deepspeed_hostfile"_key,          "deepspeed_inclusion_filter"_key,
    "deepspeed_exclusion_filter"_key};

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

/// Returns the program that a command runs: the module of `python3 -u -m MODULE`, the file name of
/// the script in `python3 FOLDER/SCRIPT`, else the file name of the executable.
std::string program_of(const std::vector<std::string>& command) {
  std::string program = file_name(command.front());
  if (!program.starts_with("python")) {
    return program;
  }
  for (std::size_t i = 1; i < command.size(); ++i) {
    if (command[i] == "-m" && i + 1 < command.size()) {
      return command[i + 1];
    }
    if (command[i] == "-c") {
      break;
    }
    if (!command[i].starts_with('-')) {
      return file_name(command[i]);
    }
  }
  return program;
}

/// True if the setting has to be equal on all machines in this mode.
bool must_agree(const SettingRow& row, Mode mode) {
  switch (row.section) {
    case Section::launch: return row == "mixed_precision"_key;
    case Section::dynamo:
    case Section::fp8: return false;  // local to each rank
    default: break;
  }
  return plugins::applies(row.section, origin_of(mode)) &&
         std::ranges::find(kOfOneMachine, plugins::SettingKey(row)) == kOfOneMachine.end();
}

/// Returns a setting in canonical spelling, since `True` and `1` are equal, as are `FULL_SHARD` and
/// its number.
std::string in_one_spelling(const plugins::Settings& settings, const SettingRow& row) {
  const std::string& text = settings.text(row);
  try {
    switch (row.type) {
      case Type::boolean: return settings.boolean(row) ? "true" : "false";
      case Type::integer:
      case Type::count: return std::to_string(settings.integer(row));
      case Type::real: return fmt::format("{}", settings.real(row));
      case Type::choice:
      case Type::numbered_choice: return settings.choice(row);
      case Type::list: return fmt::format("{}", fmt::join(settings.list(row), ","));
      default: return row.format == plugins::TextFormat::lower ? lower(text) : text;
    }
  } catch (const Error&) {
    return text;  // "auto"
  }
}

/// Shortens a value that exceeds the rendezvous' limit. Its length stays in the text, so that most
/// differing values still differ.
std::string bounded(std::string value) {
  if (value.size() <= kMaxValueBytes) {
    return value;
  }
  const std::string rest = fmt::format("... ({} bytes)", value.size());
  return value.substr(0, kMaxValueBytes - rest.size()) + rest;
}

void add_settings(const plugins::Settings& settings, Mode mode, Terms& terms) {
  for (const SettingRow& row : settings.table()) {
    if (must_agree(row, mode) && settings.has(row)) {
      terms.emplace_back((row.flag == plugins::Flag::none ? "" : "--") + std::string(row.key),
                         bounded(in_one_spelling(settings, row)));
    }
  }
}

/// Adds the sharding itself. Used if the settings table has no value, because the settings came
/// from variables or are all defaults.
void add_sharding(const plugins::ShardingSettings& sharding, Terms& terms) {
  terms.emplace_back("the strategy", plugins::to_string(sharding.strategy));
  terms.emplace_back("shard groups of", std::to_string(sharding.shard_size));
  terms.emplace_back("mixed precision", plugins::to_string(sharding.mixed_precision));
  terms.emplace_back("gradient accumulation steps of",
                     std::to_string(sharding.gradient_accumulation_steps));
}

}  // namespace

Terms agreed_terms(const LaunchPlan& plan) {
  Terms terms;
  if (!plan.command.empty()) {
    terms.emplace_back("the program", bounded(program_of(plan.command)));
  }
  terms.emplace_back("the device", plugins::to_string(plan.device));
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
