#include "faces/torchrun/table.hpp"

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
    SettingRow{.key = "nnodes", .flag = Flag::value, .fallback = "1:1", .environment = "PET_NNODES",
               .help = "machines: N, or MIN:MAX with c10d"},
    SettingRow{.key = "nproc_per_node", .flag = Flag::value, .fallback = "1",
               .environment = "PET_NPROC_PER_NODE",
               .help = "workers on this machine: N, gpu, cpu, or auto: its GPUs, else its cores"},
    SettingRow{.key = "rdzv_backend", .flag = Flag::value, .type = Type::choice,
               .fallback = "static", .allowed = "static|c10d", .environment = "PET_RDZV_BACKEND",
               .help = "how machines meet: static, with --node-rank; c10d hands the ranks out"},
    SettingRow{.key = "rdzv_endpoint", .flag = Flag::value, .environment = "PET_RDZV_ENDPOINT",
               .help = "HOST[:PORT] where machines meet; an IPv6 address in brackets"},
    SettingRow{.key = "rdzv_id", .flag = Flag::value, .fallback = "none",
               .environment = "PET_RDZV_ID", .help = "name of the job, the same on every machine"},
    SettingRow{.key = "rdzv_conf", .flag = Flag::value, .environment = "PET_RDZV_CONF",
               .help = "KEY=VALUE,...: timeout=SECONDS (static, 900) or join_timeout=SECONDS "
                       "(c10d, 600), how long machines wait for each other; "
                       "last_call_timeout=SECONDS for more than MIN (30); "
                       "heartbeat_timeout=SECONDS of silence after which a machine is out (5); "
                       "is_host=0|1, whether this machine serves"},
    SettingRow{.key = "standalone", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_STANDALONE",
               .help = "this machine alone, on a free port"},
    SettingRow{.key = "max_restarts", .flag = Flag::value, .type = Type::integer, .fallback = "0",
               .allowed = "0..1000000", .environment = "PET_MAX_RESTARTS",
               .help = "restarts of a group of which a worker failed"},
    SettingRow{.key = "monitor_interval", .flag = Flag::value, .type = Type::real,
               .fallback = "0.1", .allowed = "0..", .environment = "PET_MONITOR_INTERVAL",
               .unit = "s", .help = "accepted; failures are seen at once"},
    SettingRow{.key = "start_method", .flag = Flag::value, .type = Type::choice,
               .fallback = "spawn", .allowed = "spawn|fork|forkserver",
               .environment = "PET_START_METHOD", .help = "accepted; for Python functions only"},
    SettingRow{.key = "event_log_handler", .flag = Flag::value, .type = Type::choice,
               .fallback = "null", .allowed = "null", .environment = "PET_EVENT_LOG_HANDLER",
               .help = "accepted; handlers are Python objects"},
    SettingRow{.key = "role", .flag = Flag::value, .fallback = "default", .environment = "PET_ROLE",
               .help = "ROLE_NAME of the workers"},
    SettingRow{.key = "module", .alias = "m", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_MODULE",
               .help = "PROGRAM is a Python module"},
    SettingRow{.key = "no_python", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_NO_PYTHON",
               .help = "execute PROGRAM itself"},
    SettingRow{.key = "run_path", .flag = Flag::toggle, .type = Type::boolean, .fallback = "false",
               .environment = "PET_RUN_PATH",
               .help = "run PROGRAM as a Python file, whatever --no-python says"},
    SettingRow{.key = "log_dir", .flag = Flag::value, .environment = "PET_LOG_DIR",
               .help = "folder for the workers' files; default: a temporary one; /dev/null: none"},
    SettingRow{.key = "redirects", .alias = "r", .flag = Flag::value, .fallback = "0",
               .environment = "PET_REDIRECTS",
               .help = "streams that go to a file: 0 none, 1 stdout, 2 stderr, 3 both; or by "
                       "local rank, 0:3,1-7:2"},
    SettingRow{.key = "tee", .alias = "t", .flag = Flag::value, .fallback = "0",
               .environment = "PET_TEE",
               .help = "streams that go to a file and to the console, spelled likewise"},
    SettingRow{.key = "local_ranks_filter", .flag = Flag::value,
               .environment = "PET_LOCAL_RANKS_FILTER",
               .help = "local ranks that the console shows, as in 0,2; default: all"},
    SettingRow{.key = "duplicate_stdout_filters", .flag = Flag::value,
               .environment = "PET_DUPLICATE_STDOUT_FILTERS",
               .help = "words joined by commas (,, is a comma): tee'd lines with one of them also "
                       "go to filtered_stdout.log, of all ranks together"},
    SettingRow{.key = "duplicate_stderr_filters", .flag = Flag::value,
               .environment = "PET_DUPLICATE_STDERR_FILTERS", .help = "likewise, of stderr"},
    SettingRow{.key = "node_rank", .flag = Flag::value, .type = Type::integer, .fallback = "0",
               .allowed = "0..1000000", .environment = "PET_NODE_RANK",
               .help = "which of the machines this is (static)"},
    SettingRow{.key = "master_addr", .flag = Flag::value, .fallback = "127.0.0.1",
               .environment = "PET_MASTER_ADDR", .help = "address of machine 0 (static)"},
    SettingRow{.key = "master_port", .flag = Flag::value, .type = Type::integer,
               .allowed = "0..65535", .environment = "PET_MASTER_PORT",
               .help = "port of the store on machine 0 (static); default 29500, with one machine a "
                       "free port"},
    SettingRow{.key = "local_addr", .flag = Flag::value, .environment = "PET_LOCAL_ADDR",
               .help = "address of this machine for the others; default: its host name"},
    SettingRow{.key = "numa_binding", .flag = Flag::value, .type = Type::choice,
               .fallback = "none", .allowed = "none|node|socket|exclusive|core-complex",
               .help = "bind workers to the cores near their GPUs"},
    SettingRow{.key = "signals_to_handle", .flag = Flag::value, .type = Type::list,
               .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
               .environment = "PET_SIGNALS_TO_HANDLE", .help = "signals that end the job"},
    SettingRow{.key = "virtual_local_rank", .flag = Flag::toggle, .type = Type::boolean,
               .fallback = "false", .environment = "PET_VIRTUAL_LOCAL_RANK",
               .help = "every worker is local rank 0 and sees its own GPU alone"},
};
// clang-format on

}  // namespace

std::span<const SettingRow> torchrun_table() noexcept {
  static const std::vector<SettingRow> kAll = with_common_rows(kTable);
  return kAll;
}

}  // namespace acc::launcher
