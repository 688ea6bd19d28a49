// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/front_end.hpp"
#include "acc/launcher/setting_keys.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace acc::launcher {
namespace {

using settings::SettingRow;

std::string_view title_of(settings::Group group) {
  switch (group) {
    case settings::Group::launch: return "Launch";
    case settings::Group::program: return "Program and configuration";
    case settings::Group::mode: return "Mode and device";
    case settings::Group::workers: return "Workers and machines";
    case settings::Group::machines: return "Starting other machines from this one";
    case settings::Group::cores: return "Cores";
    case settings::Group::limits: return "Failures, restarts and limits";
    case settings::Group::output: return "Output";
  }
  return {};
}

std::string switch_of(Mode mode) {
  const ModeFlag& flag = flag_of(mode);
  return " (with --" + flag.key.text() +
         " or distributed_type: " + std::string(flag.distributed_type) + ")";
}

/// Returns the heading that a flag is listed under.
std::string heading(const SettingRow& row) {
  switch (row.section) {
    case settings::Section::launch: return std::string(title_of(row.group));
    case settings::Section::training: return "Training (all modes)";
    case settings::Section::fsdp: return "FSDP" + switch_of(Mode::fsdp);
    case settings::Section::deepspeed: return "DeepSpeed" + switch_of(Mode::deepspeed);
    case settings::Section::parallelism:
      return "Parallel group sizes (parallelism_config of a configuration file)";
    case settings::Section::dynamo: return "torch.compile in a Python program";
    case settings::Section::fp8: return "fp8 in a Python program (with --mixed_precision fp8)";
    case settings::Section::zero: break;
  }
  return {};
}

}  // namespace

Flags parse_flags(const FrontEnd& front_end, std::span<const std::string> arguments) {
  Flags flags = {settings::parse_flags(front_end, arguments)};
  flags.typed.emplace_back(front_end.name);
  flags.typed.insert(flags.typed.end(), arguments.begin(), arguments.end());
  return flags;
}

std::vector<FlagGroup> flag_groups(const FrontEnd& front_end) {
  std::vector<FlagGroup> groups;
  for (const SettingRow& row : front_end.table) {
    if (row.flag == settings::Flag::none) {
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
      text += settings::help_entry(front_end, *row);
    }
  }
  return text + "\n  --help, -h    --version\n";
}

}  // namespace acc::launcher
