#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What text and JSON both say of a plan.
namespace acc::launcher {

std::string_view to_string(Mode mode) noexcept;
std::string_view to_string(Identity identity) noexcept;
std::string_view to_string(RendezvousPlan::Backend backend) noexcept;  ///< torchrun's words

std::string_view to_string(StartPlan::Means means) noexcept;

struct ShownSetting {
  std::string_view name;
  std::string_view value;  ///< empty: unset
  const plugins::Source* source;
};

/// The settings that count in this mode. They live in the plan.
std::vector<ShownSetting> settings_in_force(const LaunchPlan& plan);

/// Whether the plan says which ranks and how many there will be, or the rendezvous does.
bool knows_ranks(const LaunchPlan& plan) noexcept;

struct ShardGroups {
  int shard_size = 1;  ///< ranks that split one copy
  int replicas = 1;
};

/// Nothing where the number of ranks is not known.
std::optional<ShardGroups> shard_groups(const LaunchPlan& plan);

/// A variable that the launcher adds or changes.
struct ChangedVariable {
  using Value = std::optional<std::string>;  ///< nothing: known only when the job starts

  std::string name;
  std::vector<Value> values;  ///< by local rank; one where it is the same for all
};

struct EnvironmentChanges {
  std::vector<ChangedVariable> set;
  std::vector<std::string> removed;  ///< variables of the parent that workers do not get
};

/// What this machine's workers have that `parent` has not, or not so; nothing else of `parent`.
EnvironmentChanges environment_changes(const LaunchPlan& plan, const plugins::Environment& parent);

}  // namespace acc::launcher
