// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "plan/common_rows.hpp"
#include "torchrun_cli/front_end.hpp"

#include <array>

namespace acc::launcher::torchrun_cli {
namespace {

using plugins::Flag;
using plugins::SettingRow;
using plugins::Type;

// The order is that of --help and `explain`. clang-format would put each field on its own line.
// clang-format off
constexpr std::array kTable = {
    SettingRow{.key = "nnodes", .flag = Flag::value, .fallback = "1:1", .environment = "PET_NNODES",
               .help = "number of machines: N, or MIN:MAX with c10d"},
    SettingRow{.key = "nproc_per_node", .flag = Flag::value, .fallback = "1",
               .environment = "PET_NPROC_PER_NODE",
               .help = "workers on this machine: N, gpu, cpu, or auto (one per GPU, or per CPU if "
                       "there is no GPU)"},
    SettingRow{.key = "rdzv_backend", .flag = Flag::value, .type = Type::choice,
               .fallback = "static", .allowed = "static|c10d|etcd|etcd-v2",
               .environment = "PET_RDZV_BACKEND",
               .help = "rendezvous of the machines: static uses --node-rank; c10d assigns ranks; "
                       "etcd is c10d at the acc-rendezvous daemons whose state is in that etcd"},
    SettingRow{.key = "rdzv_endpoint", .flag = Flag::value, .environment = "PET_RDZV_ENDPOINT",
               .help = "HOST[:PORT] of the rendezvous; put an IPv6 address in brackets. c10d: of all "
                       "daemons that replace each other, joined by commas. etcd: of its members"},
    SettingRow{.key = "rdzv_id", .flag = Flag::value, .fallback = "none",
               .environment = "PET_RDZV_ID", .help = "id of the job, the same on every machine"},
    SettingRow{.key = "rdzv_conf", .flag = Flag::value, .environment = "PET_RDZV_CONF",
               .help = "KEY=VALUE,...: timeout=SECONDS (static, 900) or join_timeout=SECONDS "
                       "(c10d, 600), time to wait for all machines; "
                       "last_call_timeout=SECONDS, extra wait once MIN machines have joined (30); "
                       "heartbeat_timeout=SECONDS, a machine silent for longer is lost (5); "
                       "is_host=0|1, this machine serves the rendezvous (1) or not (0)"},
    SettingRow{.key = "standalone", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_STANDALONE",
               .help = "run on this machine only, with a free port"},
    SettingRow{.key = "max_restarts", .flag = Flag::value, .type = Type::integer, .fallback = "0",
               .allowed = "0..1000000", .environment = "PET_MAX_RESTARTS",
               .help = "number of times to restart all workers after a worker failed"},
    SettingRow{.key = "monitor_interval", .flag = Flag::value, .type = Type::real,
               .fallback = "0.1", .allowed = "0..", .environment = "PET_MONITOR_INTERVAL",
               .unit = "s", .help = "accepted, without effect: failures are detected immediately"},
    SettingRow{.key = "start_method", .flag = Flag::value, .type = Type::choice,
               .fallback = "spawn", .allowed = "spawn|fork|forkserver",
               .environment = "PET_START_METHOD",
               .help = "accepted, without effect: it applies to Python functions only"},
    SettingRow{.key = "event_log_handler", .flag = Flag::value, .type = Type::choice,
               .fallback = "null", .allowed = "null", .environment = "PET_EVENT_LOG_HANDLER",
               .help = "accepted, without effect: other handlers are Python objects"},
    SettingRow{.key = "role", .flag = Flag::value, .fallback = "default", .environment = "PET_ROLE",
               .help = "role of the workers, in their variable ROLE_NAME"},
    SettingRow{.key = "module", .alias = "m", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_MODULE",
               .help = "PROGRAM is a Python module"},
    SettingRow{.key = "no_python", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_NO_PYTHON",
               .help = "execute PROGRAM directly, without Python"},
    SettingRow{.key = "run_path", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .environment = "PET_RUN_PATH",
               .help = "run PROGRAM as a Python file even with --no-python"},
    SettingRow{.key = "log_dir", .flag = Flag::value, .environment = "PET_LOG_DIR",
               .help = "folder for the workers' log files; default: a temporary folder; "
                       "/dev/null: write no files"},
    SettingRow{.key = "redirects", .alias = "r", .flag = Flag::value, .fallback = "0",
               .environment = "PET_REDIRECTS",
               .help = "streams to write to a file instead of the console: 0 none, 1 stdout, "
                       "2 stderr, 3 both; per local rank: 0:3,1-7:2"},
    SettingRow{.key = "tee", .alias = "t", .flag = Flag::value, .fallback = "0",
               .environment = "PET_TEE",
               .help = "streams to write to a file and to the console, in the same notation"},
    SettingRow{.key = "local_ranks_filter", .flag = Flag::value,
               .environment = "PET_LOCAL_RANKS_FILTER",
               .help = "local ranks whose output the console shows, as in 0,2; default: all"},
    SettingRow{.key = "duplicate_stdout_filters", .flag = Flag::value,
               .environment = "PET_DUPLICATE_STDOUT_FILTERS",
               .help = "words joined by commas (,, is a comma): lines of stdout that are written "
                       "to a file and contain a word are copied to filtered_stdout.log, one file "
                       "for all ranks"},
    SettingRow{.key = "duplicate_stderr_filters", .flag = Flag::value,
               .environment = "PET_DUPLICATE_STDERR_FILTERS",
               .help = "the same for stderr, copied to filtered_stderr.log"},
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
    SettingRow{.key = "numa_binding", .flag = Flag::value, .type = Type::choice,
               .fallback = "none", .allowed = "none|node|socket|exclusive|core-complex",
               .help = "bind each worker to cores near its GPU"},
    SettingRow{.key = "signals_to_handle", .flag = Flag::value, .type = Type::list,
               .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
               .environment = "PET_SIGNALS_TO_HANDLE", .help = "signals that stop the job"},
    SettingRow{.key = "virtual_local_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_VIRTUAL_LOCAL_RANK",
               .help = "give every worker local rank 0 and show it only its own GPU"},
};
// clang-format on
static_assert(names_settings(kTable));

}  // namespace

std::span<const SettingRow> torchrun_table() noexcept {
  static const std::vector<SettingRow> kAll = plan::with_common_rows(kTable);
  return kAll;
}

}  // namespace acc::launcher::torchrun_cli
