// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/placement.hpp"
#include "acc/launcher/remote_launch_plan.hpp"
#include "acc/rendezvous/tls_files.hpp"
#include "acc/settings/environment.hpp"
#include "acc/settings/settings.hpp"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Training mode of the workers. How they shard their state is in `LaunchPlan::sharding`.
enum class Mode { plain, multi_gpu, fsdp, deepspeed };

/// Returns the settings' name for the settings that apply in a mode: `fsdp`, `deepspeed` or `none`.
std::string_view origin_of(Mode mode) noexcept;

/// Set of environment variables that tell a worker its rank.
enum class Identity {
  none,       ///< none: a single process, or a command that starts ranks itself (mpirun, pdsh)
  torchrun,   ///< torchrun's: RANK, LOCAL_RANK, GROUP_RANK, TORCHELASTIC_*, …
  deepspeed,  ///< DeepSpeed's launcher's: RANK, LOCAL_SIZE, CROSS_RANK, …
};

/// Rendezvous: how the machines of a job find each other and agree on ranks.
struct RendezvousPlan {
  enum class Backend {
    none,   ///< no rendezvous and no store; used with Identity::none
    fixed,  ///< "static": machine_rank is given; machine 0 serves the store at address:port
    c10d,   ///< a daemon or one of the machines serves the address and assigns the ranks
  };

  Backend backend = Backend::fixed;
  int min_machines = 1;  ///< smaller than num_machines if the job may start with fewer
  /// c10d: also HOST:PORT,… of several daemons, etcd://… or etcds://…
  std::string address = "127.0.0.1";
  rendezvous::TlsFiles etcd_files{};  ///< of an address etcds://…
  std::uint16_t port = 29500;
  bool port_was_given = false;  ///< a given port in use is an error; the default one is replaced
  std::string local_address{};  ///< address at which other machines reach this one; empty: detect
  std::string run_id = "none";
  std::chrono::seconds join_timeout{900};
  std::chrono::seconds last_call_timeout{30};  ///< wait for more machines after min_machines joined
  std::chrono::milliseconds heartbeat_timeout{5'000};  ///< a machine silent for longer is lost
  std::chrono::seconds close_timeout{30};  ///< c10d: time to inform late machines of the job's end
  std::optional<bool> is_host{};           ///< c10d: this machine serves; empty: detect
  bool machine_rank_was_given = false;     ///< c10d: machine_rank then decides the order of ranks
  bool compares_arguments = true;          ///< machines whose program has others are refused
};

/// Destinations of the workers' output besides, or instead of, the launcher's own streams.
struct OutputPlan {
  /// Set of a worker's streams: bit 0 is stdout, bit 1 is stderr, as in torchrun's -r and -t.
  using Streams = unsigned;
  static constexpr Streams kOut = 1;
  static constexpr Streams kErr = 2;
  static constexpr Streams kBoth = kOut | kErr;

  /// Folder of this run. It holds stdout.log and stderr.log of each worker, if requested, and
  /// error.json, which TORCHELASTIC_ERROR_FILE names; while the workers run also their flight
  /// records. `worker_file` returns their paths.
  std::string directory;
  bool keeps_directory = false;  ///< the user wants the files; else they are removed with the job
  /// The user named no folder: `directory` is in a temporary folder of the job that only this user
  /// may read.
  bool is_private = false;
  std::vector<Streams> to_file;     ///< by local rank; empty: none
  std::vector<Streams> to_console;  ///< by local rank; empty: all
  /// Lines with one of these words also go to attempt_N/filtered_stdout.log, filtered_stderr.log.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  std::string line_prefix;  ///< torchrun's template; empty: acclaunch's default prefix
  bool folds_lines = false;
  bool status_line = true;      ///< show the status line if stderr is a terminal
  std::string trace_directory;  ///< folder for timelines of the ranks; empty: none
  std::string data_record;      ///< folder for the samples that ranks use; empty: none

  [[nodiscard]] Streams files_of(int local_rank) const { return entry(to_file, local_rank, 0); }
  [[nodiscard]] Streams console_of(int local_rank) const {
    return entry(to_console, local_rank, kBoth);
  }

 private:
  static Streams entry(const std::vector<Streams>& streams, int local_rank, Streams otherwise) {
    const auto index = static_cast<std::size_t>(local_rank);
    return index < streams.size() ? streams[index] : otherwise;
  }
};

/// Returns the path of a file of all workers in one round: in the folder `attempt_N`. A temporary
/// folder has no folders inside, because some file systems need milliseconds to remove one; there
/// the name begins with `attempt_N.`.
std::string attempt_file(const OutputPlan& output, int round, const std::string& name);
/// Returns the path of a file of one worker in one round: `LOCAL_RANK/NAME` in the folder of the
/// attempt, or `attempt_N.LOCAL_RANK.NAME` in a temporary folder.
std::string worker_file(const OutputPlan& output, int round, int local_rank,
                        const std::string& name);
/// Returns the path of the worker's flight record, which ACC_FLIGHT_RECORD names.
std::string flight_record_of(const OutputPlan& output, int round, int local_rank);
/// Returns the path of a machine's timeline, which ACC_TRACE names.
std::string trace_file(const OutputPlan& output, int machine_rank);

/// Changes to the parent's environment for the workers, without their identity, which
/// `worker_environment` adds.
struct WorkerVariables {
  settings::Environment set{};
  std::set<std::string> removed{};
};

/// Text to append to a file before the start.
struct AppendedFile {
  std::string path;
  std::string text;
};

/// Rank slot of a launcher that was started once per rank: its position among the launchers of its
/// machine.
struct RankSlot {
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::vector<int> local_world_sizes{};  ///< by node rank; empty: the same on all machines
};

/// Number of workers, of machines, and this launcher's position among them.
struct RankLayout {
  int num_machines = 1;  ///< maximum number
  int machine_rank = 0;  ///< Backend::c10d: a preference, used only if it was given
  /// Number of workers on all machines, whose ranks follow the order of the machines. Empty: the
  /// rendezvous adds up the workers that the machines bring.
  std::optional<int> num_processes = 1;
  int local_world_size = 1;  ///< number of workers on this machine
  /// Set if the job manager started one launcher per rank. The numbers above then count launchers,
  /// each of which has one worker.
  std::optional<RankSlot> rank_slot{};
};

/// How workers are restarted and stopped, and which of them reads standard input.
struct SupervisionPlan {
  int max_restarts = 0;
  bool rejoins = false;           ///< a worker that fails is started again while the others rejoin
  bool elastic_replicas = false;  ///< workers also rejoin with another number of machines
  std::chrono::seconds restart_backoff{60};   ///< longest pause before a restart
  std::chrono::seconds time_limit{0};         ///< for the whole job; 0: none
  std::chrono::seconds shutdown_timeout{30};  ///< time from SIGTERM to SIGKILL
  std::chrono::seconds stuck_timeout{0};      ///< limit for uninterruptible sleep; 0: no limit
  /// Signals that stop the job and are listed in TORCHELASTIC_SIGNALS_TO_HANDLE. The four default
  /// signals stop the job even if they are not in this list.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::optional<int> stdin_rank = 0;  ///< rank that reads standard input; empty: none
  bool keeps_exit_status = true;      ///< exit with the failed worker's status; else with 1
};

/// Python modules that one process per machine imports; the workers are forked from it.
struct PreloadPlan {
  std::string modules{};                   ///< names joined by commas; empty: workers are started
  std::vector<std::string> interpreter{};  ///< first words of the command: Python and its flags
};

/// Job manager (Slurm, mpirun, Kubernetes, …) that this launcher runs under.
struct JobManager {
  std::string name;         ///< empty: no manager, for example in a terminal
  std::string job;          ///< "Slurm job 17, step 0"
  std::string detected_by;  ///< variables by which the manager was recognised
  /// The manager merges the output of all machines into one stream: one machine prints the lines
  /// that concern the whole job.
  bool merges_output = false;
  /// The manager sends each signal to every process itself. A second signal is then no request to
  /// force the stop.
  bool signals_everybody = false;
};

/// All decisions about a launch. A front end builds it once before anything is started; later code
/// reads no flag, file or variable. `settings` keeps every value with its source for `explain`.
struct LaunchPlan {
  /// Program and arguments for exec. `${local_rank}` in them is replaced first if
  /// `replaces_local_rank` is set.
  std::vector<std::string> command{};
  bool replaces_local_rank = false;
  PreloadPlan preload{};
  std::string working_directory{};

  Mode mode = Mode::plain;
  Identity identity = Identity::torchrun;
  settings::Device device = settings::Device::cpu;
  settings::ShardingSettings sharding{};  ///< as the workers will read it from their environment

  GpuFacts gpus{};  ///< GPUs of this machine, for `explain`
  Binding binding{};

  RankLayout layout{};
  RendezvousPlan rendezvous{};
  SupervisionPlan supervision{};
  OutputPlan output{};

  JobManager manager{};
  /// Set if this process only starts launchers on other machines. The rest of the plan is then
  /// used for its faults and notices only.
  std::optional<RemoteLaunchPlan> start{};
  /// Standard input carries the control messages of the acclaunch that started this one
  /// (remote_launch/control_message.hpp). Workers do not get it.
  bool is_controlled = false;
  /// The workers have flight records in the log folder, and can report to those who watch the job.
  bool has_records = true;

  std::string role = "default";
  bool virtual_local_rank = false;  ///< each worker is local rank 0 and sees only its own GPU

  WorkerVariables variables{};
  std::optional<AppendedFile> appended_file{};
  settings::Settings settings{};
  /// Settings from a DeepSpeed JSON file, for a front end whose own table lacks these keys.
  std::optional<settings::Settings> file_settings{};
  std::vector<std::string> notices{};  ///< one line each, printed once before the start
  bool is_quiet = false;               ///< no notices, nor lines about the ports in use
  /// The program prints its own reason for exit status 1, so the launcher prints no failure report.
  bool explains_failure = false;
  /// Command to run on this machine if the rendezvous failed; empty: none.
  std::vector<std::string> unmet_command{};
  std::string success{};  ///< line for stdout after all workers have succeeded
};

/// Result of the rendezvous for this machine: the ranks of its workers and where their store is.
struct Assignment {
  int machine_rank = 0;
  int num_machines = 1;
  int first_rank = 0;  ///< rank of this machine's first worker
  int local_world_size = 1;
  std::vector<int> local_world_sizes = {};  ///< by machine_rank; empty: the same on all machines
  int world_size = 1;
  int first_role_rank = 0;  ///< as first_rank, among the workers of the same role
  int role_world_size = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  std::string run_id = "none";
  int round = 0;          ///< number of the job's round, from 0
  int restart_count = 0;  ///< earlier rounds that ended with a failure
  std::string secret{};   ///< shared secret of the job's workers; empty: none
};

/// Returns the assignment that follows from the plan alone, before the rendezvous. Machines with an
/// undecided number of workers are assumed to have as many as this one.
Assignment planned_assignment(const LaunchPlan& plan, std::uint16_t port);

/// Variable with the number of the descriptor to which a worker may write reports (ReportLines).
/// Set when the worker is started; `worker_environment` removes that of an outer acclaunch.
inline constexpr const char* kReportVariable = "ACC_REPORT_FD";

/// Returns the variables that all workers of this machine have in common in every round.
settings::Environment environment_without_rank(const LaunchPlan& plan,
                                               const settings::Environment& parent);

/// Returns the complete environment of one worker: the parent's variables, the plan's, and the
/// worker's identity.
settings::Environment worker_environment(const LaunchPlan& plan, const Assignment& assignment,
                                         const settings::Environment& parent, int local_rank);

/// Returns the local rank of the first worker that this launcher starts: 0, except with a rank
/// slot.
int first_local_rank(const RankLayout& layout) noexcept;

/// Returns the command line of one worker.
std::vector<std::string> worker_command(const LaunchPlan& plan, int local_rank);

}  // namespace acc::launcher
