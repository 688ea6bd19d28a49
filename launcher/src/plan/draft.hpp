#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/faults.hpp"
#include "plan/given.hpp"
#include "plan/output_values.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A plan in the making: what it is made from, and what is decided so far. Each face has one with
/// fields of its own, and its stages are functions over it; the functions here are those that faces
/// share. All throw Error for what the user has to change.
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

  /// The value of a setting with the flag or variable that it came from, or would come from.
  [[nodiscard]] Given given(std::string_view key) const;
};

/// Sets what the flags say.
void read_flags(Draft& draft, plugins::Faults& faults);

/// Sets `key` from the variable `name`, where that says something and nothing else has given it.
void read_variable(Draft& draft, std::string_view key, const std::string& name);

/// torchrun's own for the shutdown timeout, read before torch's where torchrun would start workers.
inline constexpr const char* kTorchrunShutdownTimeout = "PET_SHUTDOWN_TIMEOUT";

/// How workers are ended, watched and restarted, and which one reads standard input: from the
/// settings, else torch's variables.
void read_supervision(Draft& draft);

/// From the setting rdzv_conf; the backend and the number of machines are known.
void read_rendezvous_conf(Draft& draft);

/// From the setting node_rank.
void read_node_rank(Draft& draft, int num_machines);

/// Several machines cannot meet at port 0, which lets machine 0 choose. `given`: what names it.
void check_port_is_known(const RendezvousPlan& rendezvous, int num_machines, const Given& given);

/// Where the workers' output goes, and a notice where nobody would look for its files.
void read_output(Draft& draft, const OutputWords& words);

/// Places the workers of `plan` as its `numa_binding` says: on `gpus`, if that is its device.
void place_on_cores(Draft& draft, const std::vector<int>& gpus, const HostFacts& facts);

/// The plan; the draft is spent.
LaunchPlan finished(Draft&& draft);

}  // namespace acc::launcher
