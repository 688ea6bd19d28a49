// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/launcher/placement.hpp"
#include "acc/settings/setting_rows.hpp"

#include <algorithm>
#include <array>
#include <string_view>

/// The flags of the front ends, next to the settings that they share with the workers
/// (settings::settings_table()). The order of the rows is that of --help and `explain`.
/// clang-format would put each field on its own line.
// clang-format off
namespace acc::launcher::flag_rows {

using settings::Flag;
using settings::Group;
using settings::SettingRow;
using settings::Type;

/// Supervision and output, in every front end that has no row of its own with the same key.
/// `environment` is the variable from which torchrun reads a flag that is not given.
inline constexpr std::array kCommon = {
    SettingRow{.key = "shutdown_timeout", .group = Group::limits,
               .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "30", .allowed = "0..1000000",
               .variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", .unit = "s",
               .help = "time between SIGTERM and SIGKILL when workers are stopped"},
    SettingRow{.key = "timeout", .group = Group::limits,
               .flag = Flag::value, .in_file = false, .type = Type::integer,
               .fallback = "0", .allowed = "0..1000000000", .unit = "s",
               .help = "time limit of the job from its first start; it ends with exit status 124; "
                       "0: none"},
    SettingRow{.key = "restart_backoff", .group = Group::limits,
               .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "60", .allowed = "0..1000000", .unit = "s",
               .help = "longest pause before a restart. While attempts fail within a minute, the "
                       "pauses are 0, 1, 2, 4, ... up to this"},
    SettingRow{.key = "rejoin", .group = Group::limits,
               .flag = Flag::toggle, .in_file = false,
               .type = Type::boolean, .fallback = "false",
               .help = "start only the worker that failed again, as one of --max_restarts; the "
                       "others keep their processes and rejoin (CheckpointSeries::rejoin). No GPU. "
                       "Workers that do not rejoin within --shutdown_timeout are all started "
                       "again"},
    SettingRow{.key = "elastic_replicas", .group = Group::limits,
               .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "0", .allowed = "0..65535",
               .help = "c10d, NO_SHARD or HYBRID_SHARD: when a machine is lost, the others go on "
                       "without it in their processes, as long as there are so many; one that "
                       "joins takes its state from another one's memory. Implies --rejoin and "
                       "min_machines; needs snapshots in memory. 0: no"},
    SettingRow{.key = "spares", .group = Group::limits,
               .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "0", .allowed = "0..65535",
               .help = "c10d: so many machines beyond num_machines are to join and to wait without "
                       "workers. One of them gets the ranks of a machine that is lost; one that "
                       "is not needed ends with status 0 when the job does"},
    SettingRow{.key = "stuck_timeout", .group = Group::limits,
               .flag = Flag::value, .in_file = false,
               .type = Type::integer, .fallback = "0", .allowed = "0..1000000",
               .variable = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", .unit = "s",
               .help = "a worker in uninterruptible sleep (state D) for longer counts as failed; "
                       "0: no limit"},
    SettingRow{.key = "cpu_backend", .group = Group::mode,
               .flag = Flag::value, .in_file = false, .type = Type::choice,
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
    SettingRow{.key = "log_dir", .group = Group::output, .flag = Flag::value, .in_file = false,
               .environment = "PET_LOG_DIR",
               .help = "folder for the workers' log files; default: a temporary folder; "
                       "/dev/null: write no files"},
    SettingRow{.key = "trace", .group = Group::output, .flag = Flag::value, .in_file = false,
               .help = "folder for timelines of the ranks, one file per machine, for Perfetto and "
                       "`acclaunch trace`; of programs that use libacc_runtime"},
    SettingRow{.key = "data_record", .group = Group::output, .flag = Flag::value, .in_file = false,
               .help = "folder in which each rank records the samples that it uses, for `acclaunch "
                       "data check`; of programs that use DataOrder or acclaunch.data"},
    SettingRow{.key = "status_port", .group = Group::output, .flag = Flag::value, .in_file = false,
               .help = "PORT or HOST:PORT at which the job can be watched by HTTP (docs/api.md), on "
                       "127.0.0.1 without a HOST; 0: a free port, which is printed. For a job of "
                       "several machines on the one that serves the rendezvous; a daemon needs no "
                       "such port"},
    SettingRow{.key = "redirects", .group = Group::output,
               .alias = "r", .flag = Flag::value, .in_file = false, .fallback = "0",
               .environment = "PET_REDIRECTS",
               .help = "streams to write to a file instead of the console: 0 none, 1 stdout, "
                       "2 stderr, 3 both; per local rank: 0:3,1-7:2"},
    SettingRow{.key = "tee", .group = Group::output,
               .alias = "t", .flag = Flag::value, .in_file = false, .fallback = "0",
               .environment = "PET_TEE",
               .help = "streams to write to a file and to the console, in the same notation"},
    SettingRow{.key = "local_ranks_filter", .group = Group::output,
               .flag = Flag::value, .in_file = false, .environment = "PET_LOCAL_RANKS_FILTER",
               .help = "local ranks whose output the console shows, as in 0,2; default: all"},
    SettingRow{.key = "duplicate_stdout_filters", .group = Group::output,
               .flag = Flag::value, .in_file = false, .environment = "PET_DUPLICATE_STDOUT_FILTERS",
               .help = "words joined by commas (,, is a comma): lines of stdout that are written "
                       "to a file and contain a word are copied to filtered_stdout.log, one file "
                       "for all ranks"},
    SettingRow{.key = "duplicate_stderr_filters", .group = Group::output,
               .flag = Flag::value, .in_file = false, .environment = "PET_DUPLICATE_STDERR_FILTERS",
               .help = "the same for stderr, copied to filtered_stderr.log"},
    SettingRow{.key = "log_line_prefix_template", .group = Group::output,
               .flag = Flag::value, .in_file = false,
               .variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
               .help = "prefix of each line on the console; ${role_name}, ${rank}, ${local_rank} "
                       "and ${host} are replaced"},
    SettingRow{.key = "fold_lines", .group = Group::output,
               .flag = Flag::toggle, .in_file = false, .type = Type::boolean, .fallback = "false",
               .help = "print a line that several ranks write only once, with the list of ranks"},
    SettingRow{.key = "no_status_line", .group = Group::output,
               .flag = Flag::toggle, .in_file = false, .type = Type::boolean, .fallback = "false",
               .help = "do not show the workers' status in the last line of the terminal"},
    SettingRow{.key = "log_level", .group = Group::output,
               .flag = Flag::value, .in_file = false, .type = Type::choice,
               .fallback = "info", .allowed = kLogLevels, .variable = kLogLevelVariable,
               .help = "lowest level of the launcher's messages on stderr and of libacc_runtime's, "
                       "also of those that ACC_LOG names; the reason of a failure is always "
                       "printed"},
    SettingRow{.key = "log_format", .group = Group::output,
               .flag = Flag::value, .in_file = false, .type = Type::choice,
               .fallback = "text", .allowed = kLogFormats, .variable = kLogFormatVariable,
               .help = "form of these messages; json: one object per line"},
};

/// torchrun's flags (PyTorch 2.13), except those in kCommon.
inline constexpr std::array kTorchrun = {
    SettingRow{.key = "nnodes", .flag = Flag::value, .fallback = "1:1", .environment = "PET_NNODES",
               .help = "number of machines: N, or MIN:MAX with c10d"},
    SettingRow{.key = "nproc_per_node", .flag = Flag::value, .fallback = "1",
               .environment = "PET_NPROC_PER_NODE",
               .help = "workers on this machine: N, gpu, cpu, or auto (one per GPU, or per CPU if "
                       "there is no GPU)"},
    SettingRow{.key = "rdzv_backend", .group = Group::workers,
               .flag = Flag::value, .type = Type::choice,
               .fallback = "static", .allowed = "static|c10d|etcd|etcd-v2",
               .environment = "PET_RDZV_BACKEND",
               .help = "rendezvous of the machines: static uses --node-rank; c10d assigns ranks; "
                       "etcd is c10d at the acc-rendezvous daemons whose state is in that etcd"},
    SettingRow{.key = "rdzv_endpoint", .flag = Flag::value, .environment = "PET_RDZV_ENDPOINT",
               .help = "HOST[:PORT] of the rendezvous; put an IPv6 address in brackets. c10d: of all "
                       "daemons that replace each other, joined by commas. etcd: of its members"},
    SettingRow{.key = "rdzv_id", .flag = Flag::value, .fallback = "none",
               .environment = "PET_RDZV_ID", .help = "id of the job, the same on every machine"},
    SettingRow{.key = "rdzv_conf", .group = Group::workers,
               .flag = Flag::value, .environment = "PET_RDZV_CONF",
               .help = "KEY=VALUE,...: timeout=SECONDS (static, 900) or join_timeout=SECONDS "
                       "(c10d, 600), time to wait for all machines; "
                       "last_call_timeout=SECONDS, extra wait once MIN machines have joined (30); "
                       "heartbeat_timeout=SECONDS, a machine silent for longer is lost (5); "
                       "is_host=0|1, this machine serves the rendezvous (1) or not (0)"},
    SettingRow{.key = "standalone", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_STANDALONE",
               .help = "run on this machine only, with a free port"},
    SettingRow{.key = "max_restarts", .group = Group::limits,
               .flag = Flag::value, .type = Type::integer, .fallback = "0",
               .allowed = "0..1000000", .environment = "PET_MAX_RESTARTS",
               .help = "number of times to restart all workers after a worker failed"},
    SettingRow{.key = "monitor_interval", .group = Group::limits,
               .flag = Flag::value, .type = Type::real,
               .fallback = "0.1", .allowed = "0..", .environment = "PET_MONITOR_INTERVAL",
               .unit = "s", .help = "accepted, without effect: failures are detected immediately"},
    SettingRow{.key = "start_method", .flag = Flag::value, .type = Type::choice,
               .fallback = "spawn", .allowed = "spawn|fork|forkserver",
               .environment = "PET_START_METHOD",
               .help = "accepted, without effect: it applies to Python functions only"},
    SettingRow{.key = "event_log_handler", .flag = Flag::value, .type = Type::choice,
               .fallback = "null", .allowed = "null", .environment = "PET_EVENT_LOG_HANDLER",
               .help = "accepted, without effect: other handlers are Python objects"},
    SettingRow{.key = "role", .group = Group::workers,
               .flag = Flag::value, .fallback = "default", .environment = "PET_ROLE",
               .help = "role of the workers, in their variable ROLE_NAME"},
    SettingRow{.key = "module", .group = Group::program,
               .alias = "m", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_MODULE",
               .help = "PROGRAM is a Python module"},
    SettingRow{.key = "no_python", .group = Group::program,
               .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_NO_PYTHON",
               .help = "execute PROGRAM directly, without Python"},
    SettingRow{.key = "run_path", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .environment = "PET_RUN_PATH",
               .help = "run PROGRAM as a Python file even with --no-python"},
    SettingRow{.key = "node_rank", .flag = Flag::value, .type = Type::integer, .fallback = "0",
               .allowed = "0..1000000", .environment = "PET_NODE_RANK",
               .help = "rank of this machine, from 0 (static)"},
    SettingRow{.key = "master_addr", .flag = Flag::value, .fallback = "127.0.0.1",
               .environment = "PET_MASTER_ADDR", .help = "address of machine 0 (static)"},
    SettingRow{.key = "master_port", .flag = Flag::value, .type = Type::integer,
               .allowed = "0..65535", .environment = "PET_MASTER_PORT",
               .help = "port of the store on machine 0 (static); default: 29500, or a free port "
                       "with one machine"},
    SettingRow{.key = "local_addr", .flag = Flag::value, .environment = "PET_LOCAL_ADDR",
               .help = "address at which other machines reach this one; default: its host name"},
    SettingRow{.key = "numa_binding", .group = Group::cores,
               .flag = Flag::value, .type = Type::choice,
               .fallback = "none", .allowed = settings::kChoices<NumaBinding>,
               .help = "bind each worker to cores near its GPU"},
    SettingRow{.key = "signals_to_handle", .flag = Flag::value, .type = Type::list,
               .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
               .environment = "PET_SIGNALS_TO_HANDLE", .help = "signals that stop the job"},
    SettingRow{.key = "virtual_local_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_VIRTUAL_LOCAL_RANK",
               .help = "give every worker local rank 0 and show it only its own GPU"},
};

/// Flags of the deepspeed launcher (0.19.8), and acclaunch's --deepspeed_config.
inline constexpr std::array kDeepSpeed = {
    SettingRow{.key = "hostfile", .group = Group::machines,
               .alias = "H", .flag = Flag::value, .fallback = "/job/hostfile",
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
    SettingRow{.key = "module", .group = Group::program,
               .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .help = "PROGRAM is a Python module"},
    SettingRow{.key = "no_python", .group = Group::program,
               .flag = Flag::toggle, .type = Type::boolean,
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
    SettingRow{.key = "launcher", .group = Group::machines,
               .flag = Flag::value, .type = Type::choice, .fallback = "pdsh",
               .allowed = "pdsh|openmpi|mvapich|slurm|mpich|impi|jsrun",
               .help = "if pdsh is given, start the machines with pdsh; otherwise with ssh"},
    SettingRow{.key = "launcher_args", .group = Group::machines, .flag = Flag::value,
               .help = "options for ssh or pdsh, separated by spaces"},
    SettingRow{.key = "comment", .flag = Flag::value,
               .help = "accepted, without effect: an option of Slurm's srun"},
    SettingRow{.key = "account", .flag = Flag::value,
               .help = "accepted, without effect: an option of Slurm's srun"},
    SettingRow{.key = "ssh_port", .group = Group::machines,
               .flag = Flag::value, .type = Type::integer, .allowed = "1..65535",
               .help = "ssh port of all machines; default: that of ssh's configuration"},
    SettingRow{.key = "no_ssh_check", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false",
               .help = "accepted, without effect: acclaunch does not test ssh before the start"},
    SettingRow{.key = "force_multi", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "start by ssh even if there is only one machine"},
    SettingRow{.key = "quiet", .group = Group::program,
               .alias = "q", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .help = "print no notices"},
};

/// Flags of acclaunch's own command line for starting other machines from this one.
inline constexpr std::array kStart = {
    SettingRow{.key = "hostfile", .group = Group::machines,
               .alias = "H", .flag = Flag::value, .in_file = false,
               .help = "file with the machines to start the job on, one line per machine: "
                       "[USER@]NAME [slots=N]"},
    SettingRow{.key = "launcher", .group = Group::machines,
               .flag = Flag::value, .in_file = false, .type = Type::choice,
               .fallback = "ssh", .allowed = "ssh|pdsh",
               .help = "program that starts acclaunch on the machines of the hostfile"},
    SettingRow{.key = "launcher_args", .group = Group::machines,
               .flag = Flag::value, .in_file = false,
               .help = "options for ssh, pdsh or srun, separated by spaces"},
    SettingRow{.key = "ssh_port", .group = Group::machines,
               .flag = Flag::value, .in_file = false, .type = Type::integer, .allowed = "1..65535",
               .help = "ssh port of the machines; default: that of ssh's configuration"},
};

}  // namespace acc::launcher::flag_rows
// clang-format on

namespace acc::launcher {

/// True if a setting of some front end has this name.
constexpr bool names_setting(std::string_view name) noexcept {
  using namespace flag_rows;
  return settings::names_row(settings::kSettingRows, name) || settings::names_row(kCommon, name) ||
         settings::names_row(kTorchrun, name) || settings::names_row(kDeepSpeed, name) ||
         settings::names_row(kStart, name);
}

/// Key of a setting of the front ends. The table of one front end may lack it, which is an error
/// when the setting is read.
consteval settings::SettingKey operator""_key(const char* text, std::size_t size) {
  const std::string_view name(text, size);
  return {name, names_setting(name)};
}

/// A flag that chooses a mode, and the distributed_type that does so in the file.
struct ModeFlag {
  settings::SettingKey key;
  Mode mode;
  std::string_view distributed_type;
};
inline constexpr std::array kModeFlags = {
    ModeFlag{"multi_gpu"_key, Mode::multi_gpu, "MULTI_GPU"},
    ModeFlag{"use_fsdp"_key, Mode::fsdp, "FSDP"},
    ModeFlag{"use_deepspeed"_key, Mode::deepspeed, "DEEPSPEED"}};

/// Returns the row of a mode that has one: any but Mode::plain.
constexpr const ModeFlag& flag_of(Mode mode) noexcept {
  return *std::ranges::find(kModeFlags, mode, &ModeFlag::mode);
}
constexpr settings::SettingKey mode_key(Mode mode) noexcept {
  return flag_of(mode).key;
}

}  // namespace acc::launcher
