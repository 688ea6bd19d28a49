// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/settings/words.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::settings {

template <>
inline constexpr std::array kWords<launcher::Mode> = {
    Word{launcher::Mode::plain, "plain"}, Word{launcher::Mode::multi_gpu, "multi_gpu"},
    Word{launcher::Mode::fsdp, "fsdp"}, Word{launcher::Mode::deepspeed, "deepspeed"}};
template <>
inline constexpr std::array kWords<launcher::Identity> = {
    Word{launcher::Identity::none, "none"}, Word{launcher::Identity::torchrun, "torchrun"},
    Word{launcher::Identity::deepspeed, "deepspeed"}};
template <>  // torchrun's names
inline constexpr std::array kWords<launcher::RendezvousPlan::Backend> = {
    Word{launcher::RendezvousPlan::Backend::none, "none"},
    Word{launcher::RendezvousPlan::Backend::fixed, "static"},
    Word{launcher::RendezvousPlan::Backend::c10d, "c10d"}};
template <>
inline constexpr std::array kWords<launcher::RemoteLaunchPlan::Means> = {
    Word{launcher::RemoteLaunchPlan::Means::ssh, "ssh"},
    Word{launcher::RemoteLaunchPlan::Means::pdsh, "pdsh"},
    Word{launcher::RemoteLaunchPlan::Means::srun, "srun"}};
template <>
inline constexpr std::array kWords<Source::Kind> = {
    Word{Source::Kind::default_value, "default"},
    Word{Source::Kind::environment, "environment"},
    Word{Source::Kind::file, "file"},
    Word{Source::Kind::deepspeed_file, "deepspeed_file"},
    Word{Source::Kind::derived, "derived"},
    Word{Source::Kind::job, "job"},
    Word{Source::Kind::flag, "flag"},
    Word{Source::Kind::program, "program"}};

}  // namespace acc::settings

// Facts about a plan that both the text and the JSON output of explain contain.
namespace acc::launcher::commands {

/// A setting with its value and the place where the value comes from.
struct ShownSetting {
  std::string_view name;
  std::string_view value;  ///< empty: unset
  const settings::Source* source;
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
EnvironmentChanges environment_changes(const LaunchPlan& plan, const settings::Environment& parent);

}  // namespace acc::launcher::commands
