// SPDX-License-Identifier: Apache-2.0
#include "plan/common_rows.hpp"

#include "acc/base/log.hpp"
#include "acc/launcher/setting_keys.hpp"

#include <array>

namespace acc::launcher::plan {
namespace {

using plugins::Flag;
using plugins::SettingRow;
using plugins::Type;

// The order is that of --help and `explain`. clang-format would put each field on its own line.
// clang-format off
constexpr std::array kRows = {
    SettingRow{.key = "shutdown_timeout", .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "30", .allowed = "0..1000000", .unit = "s",
               .help = "time between SIGTERM and SIGKILL when workers are stopped"},
    SettingRow{.key = "timeout", .flag = Flag::value, .in_file = false, .type = Type::integer,
               .fallback = "0", .allowed = "0..1000000000", .unit = "s",
               .help = "time limit of the job from its first start; it ends with exit status 124; "
                       "0: none"},
    SettingRow{.key = "restart_backoff", .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "60", .allowed = "0..1000000", .unit = "s",
               .help = "longest pause before a restart. While attempts fail within a minute, the "
                       "pauses are 0, 1, 2, 4, ... up to this"},
    SettingRow{.key = "stuck_timeout", .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "0", .allowed = "0..1000000", .unit = "s",
               .help = "a worker in uninterruptible sleep (state D) for longer counts as failed; "
                       "0: no limit"},
    SettingRow{.key = "cpu_backend", .flag = Flag::value, .in_file = false, .type = Type::choice,
               .fallback = "gloo", .allowed = "gloo|acc",
               .help = "back end that torch.distributed uses in Python programs where they ask for "
                       "gloo on CPU tensors; acc: shared memory on one machine"},
    SettingRow{.key = "stdin", .flag = Flag::value, .in_file = false, .fallback = "0",
               .help = "rank that reads the launcher's standard input, or none; the other ranks "
                       "read from /dev/null"},
    SettingRow{.key = "secure", .flag = Flag::toggle, .in_file = false, .type = Type::boolean,
               .fallback = "false",
               .help = "machines prove a token to each other and encrypt what they send; the token "
                       "is in the file that ACC_RENDEZVOUS_TOKEN_FILE names, which implies this, or "
                       "is made where acclaunch starts the machines"},
    SettingRow{.key = "insecure", .flag = Flag::toggle, .in_file = false, .type = Type::boolean,
               .fallback = "false",
               .help = "allow a c10d rendezvous and workers' stores that other machines can reach "
                       "without a token"},
    SettingRow{.key = "log_dir", .flag = Flag::value, .in_file = false,
               .help = "folder for the workers' log files; default: a temporary folder"},
    SettingRow{.key = "trace", .flag = Flag::value, .in_file = false,
               .help = "folder for timelines of the ranks, one file per machine, for Perfetto and "
                       "`acclaunch trace`; of programs that use libacc_runtime"},
    SettingRow{.key = "status_port", .flag = Flag::value, .in_file = false,
               .help = "PORT or HOST:PORT at which the job can be watched by HTTP (docs/api.md), on "
                       "127.0.0.1 without a HOST; 0: a free port, which is printed. For a job of "
                       "several machines on the one that serves the rendezvous; a daemon needs no "
                       "such port"},
    SettingRow{.key = "redirects", .alias = "r", .flag = Flag::value, .in_file = false,
               .fallback = "0",
               .help = "streams to write to a file instead of the console: 0 none, 1 stdout, "
                       "2 stderr, 3 both; per local rank: 0:3,1-7:2"},
    SettingRow{.key = "tee", .alias = "t", .flag = Flag::value, .in_file = false, .fallback = "0",
               .help = "streams to write to a file and to the console, in the same notation"},
    SettingRow{.key = "local_ranks_filter", .flag = Flag::value, .in_file = false,
               .help = "local ranks whose output the console shows, as in 0,2; default: all"},
    SettingRow{.key = "duplicate_stdout_filters", .flag = Flag::value, .in_file = false,
               .help = "words joined by commas (,, is a comma): lines of stdout that are written "
                       "to a file and contain a word are copied to filtered_stdout.log, one file "
                       "for all ranks"},
    SettingRow{.key = "duplicate_stderr_filters", .flag = Flag::value, .in_file = false,
               .help = "the same for stderr, copied to filtered_stderr.log"},
    SettingRow{.key = "log_line_prefix_template", .flag = Flag::value, .in_file = false,
               .help = "prefix of each line on the console; ${role_name}, ${rank}, ${local_rank} "
                       "and ${host} are replaced"},
    SettingRow{.key = "fold_lines", .flag = Flag::toggle, .in_file = false, .type = Type::boolean,
               .fallback = "false",
               .help = "print a line that several ranks write only once, with the list of ranks"},
    SettingRow{.key = "no_status_line", .flag = Flag::toggle, .in_file = false,
               .type = Type::boolean, .fallback = "false",
               .help = "do not show the workers' status in the last line of the terminal"},
    SettingRow{.key = "log_level", .flag = Flag::value, .in_file = false, .type = Type::choice,
               .fallback = "info", .allowed = kLogLevels,
               .help = "lowest level of the launcher's messages on stderr and of libacc_runtime's; "
                       "the reason of a failure is always printed"},
    SettingRow{.key = "log_format", .flag = Flag::value, .in_file = false, .type = Type::choice,
               .fallback = "text", .allowed = kLogFormats,
               .help = "form of these messages; json: one object per line"},
};
// clang-format on
static_assert(names_settings(kRows));

/// Settings of the workers' table that every front end has.
constexpr std::array kSharedRows = {"preload"_key};

}  // namespace

std::vector<SettingRow> with_common_rows(std::span<const SettingRow> rows) {
  std::vector<SettingRow> all(rows.begin(), rows.end());
  for (const SettingRow& row : kRows) {
    if (plugins::find_setting(row.key, rows) == nullptr) {
      all.push_back(row);
    }
  }
  for (const plugins::SettingKey key : kSharedRows) {
    if (plugins::find_setting(key.name(), all) == nullptr) {
      all.push_back(*plugins::find_setting(key.name()));
    }
  }
  return all;
}

}  // namespace acc::launcher::plan
