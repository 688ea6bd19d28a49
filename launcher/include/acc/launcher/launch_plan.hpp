#pragma once

#include "acc/launcher/placement.hpp"
#include "acc/launcher/start_plan.hpp"
#include "acc/plugins/environment.hpp"
#include "acc/plugins/settings.hpp"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// What the workers are, apart from how their state is sharded.
enum class Mode { plain, multi_gpu, fsdp, deepspeed };

/// The settings that are in force, as acc::plugins names them: `fsdp`, `deepspeed` or `none`.
std::string_view origin_of(Mode mode) noexcept;

/// By which variables a worker is told who it is.
enum class Identity {
  none,       ///< one process that is told nothing: a script on its own, mpirun, pdsh
  torchrun,   ///< RANK, LOCAL_RANK, GROUP_RANK, TORCHELASTIC_*, …
  deepspeed,  ///< those of DeepSpeed's launcher: LOCAL_SIZE, CROSS_RANK, …
};

/// How the machines of a job find each other.
struct RendezvousPlan {
  enum class Backend {
    none,   ///< there is nobody to meet and no store: Identity::none
    fixed,  ///< "static": machine_rank is given, machine 0 serves the store at address:port
    c10d,   ///< the address is that of a daemon, or of a machine that serves; ranks are handed out
  };

  Backend backend = Backend::fixed;
  int min_machines = 1;  ///< below num_machines where fewer will do
  std::string address = "127.0.0.1";
  std::uint16_t port = 29500;
  bool port_was_given = false;  ///< a given port that is in use is an error, the default one is not
  std::string local_address;    ///< where the others reach this machine; empty: found out
  std::string run_id = "none";
  std::chrono::seconds join_timeout{900};
  std::chrono::seconds last_call_timeout{30};          ///< for more machines, once there are enough
  std::chrono::milliseconds heartbeat_timeout{5'000};  ///< a silent machine is out after it
  std::chrono::seconds close_timeout{30};  ///< c10d: late comers hear for so long that it is over
  std::optional<bool> is_host;             ///< c10d: serve at the address, or not; empty: find out
  bool machine_rank_was_given = false;     ///< c10d: then it decides the order of ranks
};

/// Where the workers' output goes besides, or instead of, the launcher's own streams.
struct OutputPlan {
  /// Which of a worker's streams: bit 0 stdout, bit 1 stderr, as torchrun's -r and -t count.
  using Streams = unsigned;

  /// Unique to this run. Below it `attempt_N/LOCAL_RANK/` holds stdout.log and stderr.log, where
  /// asked for, and error.json, which TORCHELASTIC_ERROR_FILE names. While the workers run it also
  /// holds their flight records.
  std::string directory;
  bool keeps_directory = false;  ///< the user wants its files; else it goes with the job
  /// The user named no place: it lies in a temporary folder of the job's own, which is for nobody
  /// else to look into.
  bool is_private = false;
  std::vector<Streams> to_file;     ///< by local rank; empty: none
  std::vector<Streams> to_console;  ///< by local rank; empty: all
  /// Lines with one of these words also go to attempt_N/filtered_stdout.log, filtered_stderr.log.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  std::string line_prefix;  ///< torchrun's template; empty: ours
  bool folds_lines = false;
  bool status_line = true;  ///< where there is a terminal
};

/// Where the files of one worker are, in that round.
std::string worker_folder(const OutputPlan& output, int round, int local_rank);
/// Among them the one that ACC_FLIGHT_RECORD names.
std::string flight_record_of(const OutputPlan& output, int round, int local_rank);

/// Text to be added to a file before the start.
struct AppendedFile {
  std::string path;
  std::string text;
};

/// A launcher that was started for one rank: its place among the others of its machine.
struct Seat {
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::vector<int> local_world_sizes{};  ///< by node rank; empty: the same on all machines
};

/// The manager of jobs that this launcher found itself under.
struct JobManager {
  std::string name;         ///< empty: none, a terminal
  std::string job;          ///< "Slurm job 17, step 0"
  std::string detected_by;  ///< the variables that say so
  /// What all machines print comes to one place: what is the job's alone is printed by one of them.
  bool merges_output = false;
  /// Sends its signals to every process itself: a second one does not insist.
  bool signals_everybody = false;
};

/// All that is decided before anything is started. Built once, by a face; nothing later reads a
/// flag, a file or the environment. `settings` keeps every value with its source for `explain`.
struct LaunchPlan {
  /// Program and its arguments, ready for exec but for `${local_rank}` where
  /// `replaces_local_rank` says so.
  std::vector<std::string> command;
  bool replaces_local_rank = false;
  std::string working_directory;

  Mode mode = Mode::plain;
  Identity identity = Identity::torchrun;
  plugins::Device device = plugins::Device::cpu;
  plugins::ShardingSettings sharding;  ///< what the workers will make of their environment
  std::vector<std::string> gpu_ids;    ///< empty: leave CUDA_VISIBLE_DEVICES as it is

  GpuFacts gpus;  ///< of this machine, for `explain`
  NumaBinding numa_binding = NumaBinding::none;
  std::vector<Placement> placements;  ///< of this machine's workers, by local rank

  RendezvousPlan rendezvous;
  int num_machines = 1;  ///< at most
  int machine_rank = 0;  ///< Backend::c10d: a wish at most
  /// Over all machines; 0: as many as the machines bring. Ranks follow in the order of machines.
  int num_processes = 1;
  int local_world_size = 1;  ///< on this machine

  JobManager manager;
  /// This launcher supervises one worker, as others on this machine do: num_machines,
  /// machine_rank and num_processes then count launchers, which are workers.
  std::optional<Seat> seat;
  /// The job runs elsewhere; of what else is decided here only faults and notices count.
  std::optional<StartPlan> start;
  /// Standard input is a starter's: start/control_message.hpp. Workers do not get it.
  bool is_controlled = false;

  std::optional<int> stdin_rank = 0;  ///< the worker that gets standard input; empty: none
  std::string role = "default";
  bool virtual_local_rank = false;  ///< each worker is local rank 0 and sees its own GPU alone
  int max_restarts = 0;
  /// End the job, and are named in TORCHELASTIC_SIGNALS_TO_HANDLE. The usual four always end it.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::chrono::seconds shutdown_timeout{30};
  std::chrono::seconds time_limit{0};        ///< of the whole job; 0: none
  std::chrono::seconds restart_backoff{60};  ///< longest pause before a restart
  std::chrono::seconds stuck_timeout{0};     ///< in uninterruptible sleep; 0: no limit
  bool keeps_exit_status = true;             ///< of the worker that failed; else a failure is 1

  OutputPlan output;

  /// What the workers get besides their identity, which `worker_environment` adds, and what they
  /// do not get of the parent's.
  plugins::Environment environment;
  std::set<std::string> removed_variables;
  std::optional<AppendedFile> appended_file;
  plugins::Settings settings;
  /// What a DeepSpeed JSON file says of the settings table, where the face has a table of its own.
  std::optional<plugins::Settings> file_settings;
  std::vector<std::string> notices;  ///< one line each, printed once before the start
  /// The program itself says why it ends with status 1: no report of a failed worker then.
  bool explains_failure = false;
  /// Run on this machine where the job's could not meet; empty: nothing.
  std::vector<std::string> unmet_command;
  std::string success;  ///< a line for stdout when all workers have succeeded
};

/// Who this machine's workers are in the job: what the rendezvous answers.
struct Assignment {
  int machine_rank = 0;
  int num_machines = 1;
  int first_rank = 0;  ///< of this machine's workers
  int local_world_size = 1;
  std::vector<int> local_world_sizes = {};  ///< by machine_rank; empty: the same on all machines
  int world_size = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  std::string run_id = "none";
  int round = 0;          ///< of the job, from 0
  int restart_count = 0;  ///< rounds before it that ended with a failure
  std::string secret{};   ///< of the job's workers; empty: they get none
};

/// The assignment of a plan that leaves nothing to be found out but the store's port; machines that
/// may bring what they like bring as much as this one.
Assignment planned_assignment(const LaunchPlan& plan, std::uint16_t port);

/// The complete environment of one worker: the parent's, the plan's, and who it is.
plugins::Environment worker_environment(const LaunchPlan& plan, const Assignment& assignment,
                                        const plugins::Environment& parent, int local_rank);

/// Local rank of the machine's first worker that this launcher starts.
int first_local_rank(const LaunchPlan& plan) noexcept;

/// The command of one worker.
std::vector<std::string> worker_command(const LaunchPlan& plan, int local_rank);

}  // namespace acc::launcher
