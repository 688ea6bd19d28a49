// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/front_end.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace acc::launcher {
namespace {

using plugins::SettingRow;

std::string_view title_of(plugins::Group group) {
  switch (group) {
    case plugins::Group::launch: return "Launch";
    case plugins::Group::program: return "Program and configuration";
    case plugins::Group::mode: return "Mode and device";
    case plugins::Group::workers: return "Workers and machines";
    case plugins::Group::machines: return "Starting other machines from this one";
    case plugins::Group::cores: return "Cores";
    case plugins::Group::limits: return "Failures, restarts and limits";
    case plugins::Group::output: return "Output";
  }
  return {};
}

/// Returns the heading that a flag is listed under.
std::string heading(const SettingRow& row) {
  switch (row.section) {
    case plugins::Section::launch: return std::string(title_of(row.group));
    case plugins::Section::training: return "Training (all modes)";
    case plugins::Section::fsdp: return "FSDP (with --use_fsdp or distributed_type: FSDP)";
    case plugins::Section::deepspeed:
      return "DeepSpeed (with --use_deepspeed or distributed_type: DEEPSPEED)";
    case plugins::Section::parallelism:
      return "Parallel group sizes (parallelism_config of a configuration file)";
    case plugins::Section::dynamo: return "torch.compile in a Python program";
    case plugins::Section::fp8: return "fp8 in a Python program (with --mixed_precision fp8)";
    case plugins::Section::zero: break;
  }
  return {};
}

}  // namespace

Flags parse_flags(const FrontEnd& front_end, std::span<const std::string> arguments) {
  Flags flags = {plugins::parse_flags(front_end, arguments)};
  flags.typed.emplace_back(front_end.name);
  flags.typed.insert(flags.typed.end(), arguments.begin(), arguments.end());
  return flags;
}

std::vector<FlagGroup> flag_groups(const FrontEnd& front_end) {
  std::vector<FlagGroup> groups;
  for (const SettingRow& row : front_end.table) {
    if (row.flag == plugins::Flag::none) {
      continue;
    }
    const std::string title = heading(row);
    auto group = std::ranges::find(groups, title, &FlagGroup::title);
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {title, {}});
    }
    group->rows.push_back(&row);
  }
  return groups;
}

std::string help_text(const FrontEnd& front_end) {
  std::string text(front_end.usage);
  for (const auto& [title, rows] : flag_groups(front_end)) {
    text += "\n" + title + "\n";
    for (const SettingRow* row : rows) {
      text += plugins::help_entry(front_end, *row);
    }
  }
  return text + "\n  --help, -h    --version\n";
}

}  // namespace acc::launcher
