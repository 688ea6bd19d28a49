// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "acc/plugins/faults.hpp"
#include "plan/output_values.hpp"

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
  Draft(const Flags& given_flags, const plugins::Environment& parent, const HostFacts& host,
        std::span<const plugins::SettingRow> table)
      : flags(given_flags),
        environment(parent),
        facts(host),
        settings(table),
        faults(given_flags.faults) {}

  const Flags& flags;
  const plugins::Environment& environment;
  const HostFacts& facts;
  plugins::Settings settings;
  std::vector<std::string> notices;
  plugins::Faults faults;  ///< at first those of the command line

  void notice(std::string line) { notices.push_back(std::move(line)); }
  void notice_all(const std::vector<std::string>& lines);

  /// Returns the value of a setting with its origin: the flag or variable that it came from, or the
  /// flag that would set it.
  [[nodiscard]] Sourced<std::string> given(plugins::SettingKey key) const;

  /// Returns the origin of a setting for messages: `c.yaml:3: zero_stage`, or a flag or variable.
  [[nodiscard]] std::string place(plugins::SettingKey key) const;

  /// Runs a stage and returns its result. If the stage throws Error, adds a fault and returns the
  /// default, so that the stages after it can report their faults too.
  template <typename Stage>
  std::invoke_result_t<Stage> result_of(Stage stage) {
    std::invoke_result_t<Stage> result{};
    faults.collect([&] { result = stage(); });
    return result;
  }
};

/// Sets the values of all flags, and the engine. Adds a fault for each invalid one.
void read_flags(Draft& draft);

/// Sets the engine of Python programs from its variable if neither a flag nor a file has set it.
void read_engine(Draft& draft);

/// Sets `key` from the variable `name` if the variable is not empty and the setting is not given.
void read_variable(Draft& draft, plugins::SettingKey key, const std::string& name);

/// torchrun's variable for the shutdown timeout. It is read before that of torch itself, by front
/// ends whose original starts workers with torchrun.
inline constexpr const char* kTorchrunShutdownTimeout = "PET_SHUTDOWN_TIMEOUT";

/// Reads how workers are stopped and watched, and which rank reads standard input, from the
/// settings, else from torch's variables. Restarts and signals are not settings of all front ends.
SupervisionPlan read_supervision(Draft& draft);

/// Sets the times of `rendezvous` from the setting rdzv_conf, by its backend.
void read_rendezvous_conf(Draft& draft, int num_machines, RendezvousPlan& rendezvous);

/// Reads the setting node_rank. Throws Error(config) if it is not below `num_machines`.
int read_node_rank(const Draft& draft, int num_machines);

/// Throws Error(config) if several machines are to meet at port 0, which lets machine 0 choose a
/// port that the others cannot know. `given` is the setting of the port.
void check_port_is_known(std::uint16_t port, int num_machines, const Sourced<std::string>& given);

/// Plans the destinations of the workers' output. Adds a notice with the path of log files in a
/// temporary folder.
OutputPlan read_output(Draft& draft, const OutputWords& words, const std::string& run_id,
                       const RankLayout& layout);

/// Assigns cores of the machine `facts` to its workers, and `gpus` if there are any.
Binding bind_workers(Draft& draft, NumaBinding policy, int local_world_size,
                     const std::vector<int>& gpus, const HostFacts& facts);

/// Lets Python programs load the package acclaunch, and tells it what to replace, if the back end
/// for CPU tensors or the engine is to be ours. Throws Error if the package cannot be loaded.
void load_package(Draft& draft, WorkerVariables& workers);

/// Returns the plan with what the draft holds: settings, notices, working directory and GPUs.
/// Throws Error(config) if no worker has the rank that is to read standard input.
LaunchPlan finished(Draft&& draft, LaunchPlan plan);

}  // namespace acc::launcher::plan
