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
  all.insert(all.end(), kRows.begin(), kRows.end());
  return all;
}

}  // namespace acc::launcher
