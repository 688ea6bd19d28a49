// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "acc/settings/faults.hpp"
#include "plan/output_values.hpp"
#include "plan/program_command.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace acc::launcher::plan {

/// Inputs of planning, and what its stages collect: values of settings, notices and faults. Each
/// decision is the result of a stage, a function over the draft and earlier decisions; the planner
/// of a front end builds the plan from them. The functions below are stages that front ends share.
/// They throw Error for faults that the user can correct. The inputs are references and must
/// outlive the draft.
struct Draft {
  Draft(const Flags& given_flags, const settings::Environment& parent, const HostFacts& host,
        std::span<const settings::SettingRow> table)
      : flags(given_flags),
        environment(parent),
        facts(host),
        settings(table),
        faults(given_flags.faults) {}

  const Flags& flags;
  const settings::Environment& environment;
  const HostFacts& facts;
  settings::Settings settings;
  std::vector<std::string> notices;
  settings::Faults faults;  ///< at first those of the command line

  /// Adds a line, unless it is empty.
  void notice(std::string line);
  void notice_all(const std::vector<std::string>& lines);

  /// Returns the value of a setting with its origin: the flag or variable that it came from, or the
  /// flag that would set it.
  [[nodiscard]] Sourced<std::string> given(settings::SettingKey key) const;

  /// True if the front end has this setting.
  [[nodiscard]] bool knows(settings::SettingKey key) const;

  /// Returns the origin of a setting for messages: `c.yaml:3: zero_stage`, or a flag or variable.
  [[nodiscard]] std::string place(settings::SettingKey key) const;

  /// Runs a stage and returns its result. If the stage throws Error, adds a fault and returns the
  /// default, so that the stages after it can report their faults too.
  template <typename Stage>
  std::invoke_result_t<Stage> result_of(Stage stage) {
    std::invoke_result_t<Stage> result{};
    faults.collect([&] { result = stage(); });
    return result;
  }
};

/// Returns the rows of a front end's own table, followed by those that every front end has. A key
/// of the own table is not repeated.
std::vector<settings::SettingRow> with_common_rows(std::span<const settings::SettingRow> rows);

/// Sets the values of all flags, and the engine. Adds a fault for each invalid one.
void read_flags(Draft& draft);

/// Sets the engine of Python programs from its variable if neither a flag nor a file has set it.
void read_engine(Draft& draft);

/// Sets `key` from the variable `name` if the variable is not empty and the setting is not given.
void read_variable(Draft& draft, settings::SettingKey key, const std::string& name);

/// Reads the variables of all flags that are not given (SettingRow::variable), then how workers are
/// restarted, stopped and watched, and which rank reads standard input. is_torchrun: the original
/// of the front end starts these workers with torchrun, whose variable for the shutdown timeout is
/// read first. Signals are not settings of all front ends.
SupervisionPlan read_supervision(Draft& draft, bool is_torchrun);

/// Sets the times of `rendezvous` from the setting rdzv_conf, by its backend.
void read_rendezvous_conf(Draft& draft, int num_machines, RendezvousPlan& rendezvous);

/// Reads the setting node_rank. Throws Error(config) if it is not below `num_machines`.
int read_node_rank(const Draft& draft, int num_machines);

/// Throws Error(config) if several machines are to meet at port 0, which lets machine 0 choose a
/// port that the others cannot know. `given` is the setting of the port.
void check_port_is_known(std::uint16_t port, int num_machines, const Sourced<std::string>& given);

/// Parses names of signals joined by commas, `SIGTERM,SIGUSR1`. Throws Error(config) for an unknown
/// signal, and for SIGKILL, SIGSTOP and SIGCHLD.
std::vector<int> read_signals(const Sourced<std::string>& given);

/// Returns the name of a signal, `SIGTERM`, or its number if it has no name.
std::string signal_word(int signal);

/// Where a job can be watched by HTTP (--status_port).
struct StatusEndpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: a free one
};

/// Reads PORT or HOST:PORT; empty if it is not given. Throws Error(config).
std::optional<StatusEndpoint> status_endpoint(const settings::Settings& settings);

/// Plans the destinations of the workers' output. With `log_of_each_rank`, a folder, all output
/// goes to files there. Adds a notice with the path of log files in a temporary folder.
OutputPlan read_output(Draft& draft, const std::string& run_id, const RankLayout& layout,
                       const std::optional<Sourced<std::string>>& log_of_each_rank = {});

/// Assigns cores of the machine `facts` to its workers, and `gpus` if there are any.
Binding bind_workers(Draft& draft, NumaBinding policy, int local_world_size,
                     const std::vector<int>& gpus, const HostFacts& facts);

/// Lets Python programs load the package acclaunch, and tells it what to replace, if the back end
/// for CPU tensors or the engine is to be ours. Throws Error if the package cannot be loaded.
void load_package(Draft& draft, WorkerVariables& workers);

/// True if ACC_SHARE_GPUS allows more workers than GPUs.
bool shares_gpus(const settings::Environment& environment);

/// Throws Error(config) if CUDA_VISIBLE_DEVICES has fewer entries than the machine has workers that
/// are to see one GPU each. `where` is the flag or variable that requests this.
void check_own_gpus(const std::string& where, int local_world_size,
                    const settings::Environment& environment);

/// Reads how PROGRAM is to be interpreted, from the settings module and no_python.
ProgramKind read_program_kind(const Draft& draft);

/// Reads the setting preload. `command` is that of the workers, made by `program_command` from
/// `kind`. Throws Error(config) if a name is no module's, or if PROGRAM does not run under Python.
PreloadPlan read_preload(const Draft& draft, ProgramKind kind,
                         const std::vector<std::string>& command);

/// Returns the plan with what the draft holds: settings, notices, working directory and GPUs.
/// Throws Error(config) if no worker has the rank that is to read standard input.
LaunchPlan finished(Draft&& draft, LaunchPlan plan);

}  // namespace acc::launcher::plan
