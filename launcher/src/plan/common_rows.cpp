#include "plan/common_rows.hpp"

#include <array>

namespace acc::launcher {
namespace {

using plugins::Flag;
using plugins::SettingRow;
using plugins::Type;

// Order is that of --help and `explain`. One field a line would make it thrice as long.
// clang-format off
constexpr std::array kRows = {
    SettingRow{.key = "shutdown_timeout", .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "30", .allowed = "0..1000000", .unit = "s",
               .help = "from SIGTERM to SIGKILL when workers are stopped"},
    SettingRow{.key = "timeout", .flag = Flag::value, .in_file = false, .type = Type::integer,
               .fallback = "0", .allowed = "0..1000000000", .unit = "s",
               .help = "end the job that long after its first start, with status 124; 0: never"},
    SettingRow{.key = "restart_backoff", .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "60", .allowed = "0..1000000", .unit = "s",
               .help = "longest pause before a restart: none, 1, 2, 4, ... while attempts fail "
                       "within a minute"},
    SettingRow{.key = "stuck_timeout", .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "0", .allowed = "0..1000000", .unit = "s",
               .help = "a worker that long in uninterruptible sleep has failed; 0: never"},
    SettingRow{.key = "stdin", .flag = Flag::value, .in_file = false, .fallback = "0",
               .help = "rank that gets the launcher's standard input, or none; the others read from "
                       "/dev/null"},
    SettingRow{.key = "log_dir", .flag = Flag::value, .in_file = false,
               .help = "folder for the workers' files; default: a temporary one"},
    SettingRow{.key = "redirects", .alias = "r", .flag = Flag::value, .in_file = false,
               .fallback = "0",
               .help = "streams that go to a file: 0 none, 1 stdout, 2 stderr, 3 both; or by "
                       "local rank, 0:3,1-7:2"},
    SettingRow{.key = "tee", .alias = "t", .flag = Flag::value, .in_file = false, .fallback = "0",
               .help = "streams that go to a file and to the console, spelled likewise"},
    SettingRow{.key = "local_ranks_filter", .flag = Flag::value, .in_file = false,
               .help = "local ranks that the console shows, as in 0,2; default: all"},
    SettingRow{.key = "duplicate_stdout_filters", .flag = Flag::value, .in_file = false,
               .help = "words joined by commas (,, is a comma): tee'd lines with one of them also "
                       "go to filtered_stdout.log, of all ranks together"},
    SettingRow{.key = "duplicate_stderr_filters", .flag = Flag::value, .in_file = false,
               .help = "likewise, of stderr"},
    SettingRow{.key = "log_line_prefix_template", .flag = Flag::value, .in_file = false,
               .help = "before each line on the console; ${role_name}, ${rank}, ${local_rank} and "
                       "${host} are replaced"},
    SettingRow{.key = "fold_lines", .flag = Flag::toggle, .in_file = false, .type = Type::boolean,
               .fallback = "false",
               .help = "show a line that several ranks write once, with all their ranks"},
    SettingRow{.key = "no_status_line", .flag = Flag::toggle, .in_file = false,
               .type = Type::boolean, .fallback = "false",
               .help = "no last line on a terminal that says how the workers are"},
};
// clang-format on

}  // namespace

std::vector<SettingRow> with_common_rows(std::span<const SettingRow> rows) {
  std::vector<SettingRow> all(rows.begin(), rows.end());
  for (const SettingRow& row : kRows) {
    if (plugins::find_setting(row.key, rows) == nullptr) {
      all.push_back(row);
    }
  }
  return all;
}

}  // namespace acc::launcher
