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
#include <vector>

namespace acc::launcher {

/// An unfinished plan: the inputs of planning and the decisions so far. Each front end derives its
/// own draft, and its stages are functions over that. The functions below are stages that front
/// ends share. They throw Error for faults that the user can correct. The inputs are references and
/// must outlive the draft.
struct Draft {
  Draft(const Flags& given_flags, const plugins::Environment& parent, const HostFacts& host,
        std::span<const plugins::SettingRow> table)
      : flags(given_flags), environment(parent), facts(host), settings(table) {}

  const Flags& flags;
  const plugins::Environment& environment;
  const HostFacts& facts;
  plugins::Settings settings;
  LaunchPlan plan;

  void notice(std::string line) { plan.notices.push_back(std::move(line)); }
  void notice_all(const std::vector<std::string>& lines);

  /// Returns the value of a setting with its origin: the flag or variable that it came from, or the
  /// flag that would set it.
  [[nodiscard]] Sourced<std::string> given(plugins::SettingKey key) const;
};

/// Sets the values of all flags. Adds a fault for each invalid one.
void read_flags(Draft& draft, plugins::Faults& faults);

/// Sets `key` from the variable `name` if the variable is not empty and the setting is not given.
void read_variable(Draft& draft, plugins::SettingKey key, const std::string& name);

/// torchrun's variable for the shutdown timeout. It is read before that of torch itself, by front
/// ends whose original starts workers with torchrun.
inline constexpr const char* kTorchrunShutdownTimeout = "PET_SHUTDOWN_TIMEOUT";

/// Reads how workers are stopped, watched and restarted, and which rank reads standard input, from
/// the settings, else from torch's variables.
void read_supervision(Draft& draft);

/// Reads the setting rdzv_conf. The backend and the number of machines must be set before.
void read_rendezvous_conf(Draft& draft);

/// Reads the setting node_rank. Throws Error(config) if it is not below `num_machines`.
void read_node_rank(Draft& draft, int num_machines);

/// Throws Error(config) if several machines are to meet at port 0, which lets machine 0 choose a
/// port that the others cannot know. `given` is the setting of the port.
void check_port_is_known(std::uint16_t port, int num_machines, const Sourced<std::string>& given);

/// Plans the destinations of the workers' output. Adds a notice with the path of log files in a
/// temporary folder.
void read_output(Draft& draft, const OutputWords& words);

/// Assigns cores to the workers of `plan` by its `numa_binding`, and `gpus` if the device is CUDA.
void place_on_cores(Draft& draft, const std::vector<int>& gpus, const HostFacts& facts);

/// Completes the plan and moves it out of the draft.
LaunchPlan finished(Draft&& draft);

}  // namespace acc::launcher
