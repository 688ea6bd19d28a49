// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"
#include "acc/launcher/front_end.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace acc::launcher {
namespace {

using plugins::SettingRow;

/// A heading of --help and the flags below it.
struct Group {
  std::string_view title;
  std::string_view keys;  ///< separated by spaces
};

/// Flags of the section `launch` by subject. A flag that is missing here is listed under "Launch".
constexpr std::array kLaunchGroups = {
    Group{"Program and configuration", "config_file compat module no_python preload debug quiet"},
    Group{"Mode and device",
          "use_cpu multi_gpu use_fsdp use_deepspeed use_parallelism_config mixed_precision gpu_ids "
          "downcast_bf16 cpu_backend"},
    Group{"Workers and machines",
          "num_processes num_local_processes num_machines min_machines machine_rank "
          "main_process_ip main_process_port rdzv_backend rdzv_conf same_network role"},
    Group{"Starting other machines from this one",
          "hostfile launcher launcher_args ssh_port mpirun_hostfile"},
    Group{"Cores", "num_cpu_threads_per_process enable_cpu_affinity numa_binding"},
    Group{"Failures, restarts and limits",
          "max_restarts monitor_interval restart_backoff shutdown_timeout timeout stuck_timeout"},
    Group{"Output",
          "log_dir redirects tee local_ranks_filter duplicate_stdout_filters "
          "duplicate_stderr_filters log_line_prefix_template fold_lines no_status_line "
          "log_level log_format trace status_port"},
};

/// True if `keys`, a list separated by spaces, contains `key`.
bool lists(std::string_view keys, std::string_view key) {
  const auto words = split(keys, ' ');
  return std::ranges::find(words, key) != words.end();
}

/// Returns the heading that a flag is listed under.
std::string heading(const SettingRow& row) {
  switch (row.section) {
    case plugins::Section::launch: {
      const auto group = std::ranges::find_if(
          kLaunchGroups, [&](const Group& each) { return lists(each.keys, row.key); });
      return std::string(group == kLaunchGroups.end() ? "Launch" : group->title);
    }
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
