#include "faces/deepspeed/table.hpp"

#include "plan/common_rows.hpp"

#include <array>

namespace acc::launcher {
namespace {

using plugins::Flag;
using plugins::SettingRow;
using plugins::Type;

// Order is that of --help and `explain`. One field a line would make it thrice as long.
// clang-format off
constexpr std::array kTable = {
    SettingRow{.key = "hostfile", .alias = "H", .flag = Flag::value, .fallback = "/job/hostfile",
               .help = "machines, a line each: NAME slots=N; if there is no such file, this one"},
    SettingRow{.key = "include", .alias = "i", .flag = Flag::value,
               .help = "use only these: HOST or HOST:SLOT,SLOT, joined by @"},
    SettingRow{.key = "exclude", .alias = "e", .flag = Flag::value,
               .help = "use all but these, spelled likewise"},
    SettingRow{.key = "num_nodes", .flag = Flag::value, .type = Type::integer,
               .allowed = "1..1000000", .help = "use the first N machines of the hostfile"},
    SettingRow{.key = "num_gpus", .alias = "num_accelerators", .flag = Flag::value,
               .type = Type::integer, .allowed = "1..100000",
               .help = "workers on each machine, on its GPUs 0 to N-1"},
    SettingRow{.key = "master_addr", .flag = Flag::value,
               .help = "address of machine 0; default: its name in the hostfile"},
    SettingRow{.key = "master_port", .flag = Flag::value, .type = Type::integer,
               .allowed = "0..65535", .help = "port of the store on machine 0; default 29500"},
    SettingRow{.key = "no_ssh", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .help = "this command is typed on every machine"},
    SettingRow{.key = "node_rank", .flag = Flag::value, .type = Type::integer,
               .allowed = "0..1000000",
               .help = "which of the machines this is; default: the one of its host name"},
    SettingRow{.key = "module", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .help = "PROGRAM is a Python module"},
    SettingRow{.key = "no_python", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "execute PROGRAM itself"},
    SettingRow{.key = "no_local_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "do not give PROGRAM the argument --local_rank=N"},
    SettingRow{.key = "deepspeed_config", .flag = Flag::value,
               .help = "DeepSpeed JSON file for a C++ program, before PROGRAM; a Python program "
                       "reads the one among its own arguments"},
    SettingRow{.key = "bind_cores_to_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "give every worker an equal part of the cores"},
    SettingRow{.key = "bind_core_list", .flag = Flag::value,
               .help = "cores to share out, as in 0-3,8; default: all"},
    SettingRow{.key = "enable_each_rank_log", .flag = Flag::value, .fallback = "None",
               .help = "folder for a log of each worker, instead of the console"},
    SettingRow{.key = "launcher", .flag = Flag::value, .type = Type::choice, .fallback = "pdsh",
               .allowed = "pdsh|openmpi|mvapich|slurm|mpich|impi|jsrun",
               .help = "pdsh: start the machines by it; else, or not given: by ssh"},
    SettingRow{.key = "launcher_args", .flag = Flag::value,
               .help = "options for ssh or pdsh, joined by blanks"},
    SettingRow{.key = "comment", .flag = Flag::value, .help = "accepted, for Slurm's srun"},
    SettingRow{.key = "account", .flag = Flag::value, .help = "accepted, for Slurm's srun"},
    SettingRow{.key = "ssh_port", .flag = Flag::value, .type = Type::integer,
               .allowed = "1..65535", .help = "of all machines, if not as ssh's configuration says"},
    SettingRow{.key = "no_ssh_check", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "accepted: nothing is tried beforehand"},
    SettingRow{.key = "force_multi", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "by ssh, though there is one machine alone"},
    SettingRow{.key = "log_level", .flag = Flag::value, .type = Type::choice, .fallback = "info",
               .allowed = "debug|info|warning|error|critical",
               .help = "error and critical: print no notices"},
    SettingRow{.key = "quiet", .alias = "q", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "print no notices"},
};
// clang-format on

}  // namespace

std::span<const SettingRow> deepspeed_table() noexcept {
  static const std::vector<SettingRow> kAll = with_common_rows(kTable);
  return kAll;
}

}  // namespace acc::launcher
