// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "deepspeed_cli/front_end.hpp"
#include "plan/common_rows.hpp"

#include <array>

namespace acc::launcher::deepspeed_cli {
namespace {

using plugins::Flag;
using plugins::SettingRow;
using plugins::Type;

// The order is that of --help and `explain`. clang-format would put each field on its own line.
// clang-format off
constexpr std::array kTable = {
    SettingRow{.key = "hostfile", .alias = "H", .flag = Flag::value, .fallback = "/job/hostfile",
               .help = "file with one line per machine, NAME slots=N; if it does not exist, the "
                       "job runs on this machine only"},
    SettingRow{.key = "include", .alias = "i", .flag = Flag::value,
               .help = "use only these hosts and slots: HOST or HOST:SLOT,SLOT, joined by @"},
    SettingRow{.key = "exclude", .alias = "e", .flag = Flag::value,
               .help = "use all hosts and slots except these, in the same notation"},
    SettingRow{.key = "num_nodes", .flag = Flag::value, .type = Type::integer,
               .allowed = "1..1000000", .help = "use the first N machines of the hostfile"},
    SettingRow{.key = "num_gpus", .alias = "num_accelerators", .flag = Flag::value,
               .type = Type::integer, .allowed = "1..100000",
               .help = "number of workers on each machine, on its GPUs 0 to N-1"},
    SettingRow{.key = "master_addr", .flag = Flag::value,
               .help = "address of machine 0; default: its name in the hostfile"},
    SettingRow{.key = "master_port", .flag = Flag::value, .type = Type::integer,
               .allowed = "0..65535", .help = "port of the store on machine 0; default: 29500"},
    SettingRow{.key = "no_ssh", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .help = "do not start other machines; run this command on every machine"},
    SettingRow{.key = "node_rank", .flag = Flag::value, .type = Type::integer,
               .allowed = "0..1000000",
               .help = "rank of this machine, from 0; default: the position of its host name in "
                       "the hostfile"},
    SettingRow{.key = "module", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .help = "PROGRAM is a Python module"},
    SettingRow{.key = "no_python", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "execute PROGRAM directly, without Python"},
    SettingRow{.key = "no_local_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "do not give PROGRAM the argument --local_rank=N"},
    SettingRow{.key = "deepspeed_config", .flag = Flag::value,
               .help = "DeepSpeed JSON file for a C++ program (must be before PROGRAM); a Python "
                       "program reads the file from its own arguments"},
    SettingRow{.key = "bind_cores_to_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "bind each worker to an equal share of the cores"},
    SettingRow{.key = "bind_core_list", .flag = Flag::value,
               .help = "cores for --bind_cores_to_rank, as in 0-3,8; default: all"},
    SettingRow{.key = "enable_each_rank_log", .flag = Flag::value, .fallback = "None",
               .help = "folder for one log per worker, instead of output on the console"},
    SettingRow{.key = "launcher", .flag = Flag::value, .type = Type::choice, .fallback = "pdsh",
               .allowed = "pdsh|openmpi|mvapich|slurm|mpich|impi|jsrun",
               .help = "if pdsh is given, start the machines with pdsh; otherwise with ssh"},
    SettingRow{.key = "launcher_args", .flag = Flag::value,
               .help = "options for ssh or pdsh, separated by spaces"},
    SettingRow{.key = "comment", .flag = Flag::value,
               .help = "accepted, without effect: an option of Slurm's srun"},
    SettingRow{.key = "account", .flag = Flag::value,
               .help = "accepted, without effect: an option of Slurm's srun"},
    SettingRow{.key = "ssh_port", .flag = Flag::value, .type = Type::integer,
               .allowed = "1..65535",
               .help = "ssh port of all machines; default: that of ssh's configuration"},
    SettingRow{.key = "no_ssh_check", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false",
               .help = "accepted, without effect: acclaunch does not test ssh before the start"},
    SettingRow{.key = "force_multi", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "start by ssh even if there is only one machine"},
    SettingRow{.key = "quiet", .alias = "q", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "print no notices"},
};
// clang-format on
static_assert(names_settings(kTable));

}  // namespace

std::span<const SettingRow> deepspeed_table() noexcept {
  static const std::vector<SettingRow> kAll = plan::with_common_rows(kTable);
  return kAll;
}

}  // namespace acc::launcher::deepspeed_cli
