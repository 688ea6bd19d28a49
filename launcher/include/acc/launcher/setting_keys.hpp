// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/setting_rows.hpp"

#include <algorithm>
#include <span>
#include <string_view>

namespace acc::launcher {

/// Names of the settings that only front ends have, in the rows of their own tables. The settings
/// that they share with the workers are in plugins::settings_table().
inline constexpr std::string_view kFrontEndSettings[] = {"account",
                                                         "bind_core_list",
                                                         "bind_cores_to_rank",
                                                         "comment",
                                                         "cpu_backend",
                                                         "deepspeed_config",
                                                         "doctor_file",
                                                         "duplicate_stderr_filters",
                                                         "duplicate_stdout_filters",
                                                         "enable_each_rank_log",
                                                         "event_log_handler",
                                                         "exclude",
                                                         "fold_lines",
                                                         "force_multi",
                                                         "hostfile",
                                                         "include",
                                                         "insecure",
                                                         "launcher",
                                                         "launcher_args",
                                                         "local_addr",
                                                         "local_ranks_filter",
                                                         "log_dir",
                                                         "log_format",
                                                         "log_level",
                                                         "log_line_prefix_template",
                                                         "master_addr",
                                                         "master_port",
                                                         "nnodes",
                                                         "no_local_rank",
                                                         "no_ssh",
                                                         "no_ssh_check",
                                                         "no_status_line",
                                                         "node_rank",
                                                         "nproc_per_node",
                                                         "num_gpus",
                                                         "num_nodes",
                                                         "rdzv_endpoint",
                                                         "rdzv_id",
                                                         "redirects",
                                                         "restart_backoff",
                                                         "run_path",
                                                         "secure",
                                                         "shutdown_timeout",
                                                         "signals_to_handle",
                                                         "ssh_port",
                                                         "standalone",
                                                         "start_method",
                                                         "stdin",
                                                         "status_port",
                                                         "stuck_timeout",
                                                         "tee",
                                                         "timeout",
                                                         "trace",
                                                         "virtual_local_rank"};

/// True if a setting of some front end has this name.
constexpr bool names_setting(std::string_view name) noexcept {
  return plugins::names_row(plugins::kSettingRows, name) ||
         std::ranges::find(kFrontEndSettings, name) != std::end(kFrontEndSettings);
}

/// True if `names_setting` knows every row. Each table of a front end asserts this.
constexpr bool names_settings(std::span<const plugins::SettingRow> rows) noexcept {
  return std::ranges::all_of(rows, names_setting, &plugins::SettingRow::key);
}

/// Key of a setting of the front ends. The table of one front end may lack it, which is an error
/// when the setting is read.
consteval plugins::SettingKey operator""_key(const char* text, std::size_t size) {
  const std::string_view name(text, size);
  return {name, names_setting(name)};
}

}  // namespace acc::launcher
