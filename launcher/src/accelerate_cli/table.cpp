// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "accelerate_cli/front_end.hpp"
#include "plan/common_rows.hpp"

#include <array>

namespace acc::launcher::accelerate_cli {
namespace {

using plugins::Flag;
using plugins::SettingRow;
using plugins::Type;

// Flags for starting other machines from this one.
constexpr std::array kStart = {
    SettingRow{.key = "hostfile",
               .alias = "H",
               .flag = Flag::value,
               .in_file = false,
               .help = "file with the machines to start the job on, one line per machine: "
                       "[USER@]NAME [slots=N]"},
    SettingRow{.key = "launcher",
               .flag = Flag::value,
               .in_file = false,
               .type = Type::choice,
               .fallback = "ssh",
               .allowed = "ssh|pdsh",
               .help = "program that starts acclaunch on the machines of the hostfile"},
    SettingRow{.key = "launcher_args",
               .flag = Flag::value,
               .in_file = false,
               .help = "options for ssh, pdsh or srun, separated by spaces"},
    SettingRow{.key = "ssh_port",
               .flag = Flag::value,
               .in_file = false,
               .type = Type::integer,
               .allowed = "1..65535",
               .help = "ssh port of the machines; default: that of ssh's configuration"},
};
static_assert(names_settings(kStart));

}  // namespace

std::span<const plugins::SettingRow> accelerate_table() noexcept {
  static const std::vector<SettingRow> kAll = [] {
    std::vector<SettingRow> rows(plugins::settings_table().begin(),
                                 plugins::settings_table().end());
    rows.insert(rows.end(), kStart.begin(), kStart.end());
    return plan::with_common_rows(rows);
  }();
  return kAll;
}

}  // namespace acc::launcher::accelerate_cli
