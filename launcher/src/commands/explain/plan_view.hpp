// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Facts about a plan that both the text and the JSON output of explain contain.
namespace acc::launcher::commands {

std::string_view to_string(Mode mode) noexcept;
std::string_view to_string(Identity identity) noexcept;
std::string_view to_string(RendezvousPlan::Backend backend) noexcept;  ///< torchrun's names

std::string_view to_string(RemoteLaunchPlan::Means means) noexcept;

/// A setting with its value and the place where the value comes from.
struct ShownSetting {
  std::string_view name;
  std::string_view value;  ///< empty: unset
  const plugins::Source* source;
};

/// Returns the settings that apply in the plan's mode. They refer to the plan.
std::vector<ShownSetting> settings_in_force(const LaunchPlan& plan);

/// True if the plan determines the ranks; false if the rendezvous assigns them.
bool knows_ranks(const LaunchPlan& plan) noexcept;

struct ShardGroups {
  int shard_size = 1;  ///< number of ranks that one copy of the model is sharded over
  int replicas = 1;    ///< number of copies
};

/// Returns the shard groups; empty if the number of ranks is not known.
std::optional<ShardGroups> shard_groups(const LaunchPlan& plan);

/// A variable that the launcher adds or changes.
struct ChangedVariable {
  using Value = std::optional<std::string>;  ///< empty: known only when the job starts

  std::string name;
  std::vector<Value> values;  ///< by local rank; only one if it is the same for all
};

struct EnvironmentChanges {
  std::vector<ChangedVariable> set;
  std::vector<std::string> removed;  ///< variables of the parent that workers do not get
};

/// Returns the variables that the launcher adds to the workers' environment or changes in it,
/// compared to `parent`. Inherited variables are not included.
EnvironmentChanges environment_changes(const LaunchPlan& plan, const plugins::Environment& parent);

}  // namespace acc::launcher::commands
