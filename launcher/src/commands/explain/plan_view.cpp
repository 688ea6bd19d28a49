// SPDX-License-Identifier: Apache-2.0
#include "commands/explain/plan_view.hpp"

#include "acc/settings/strategy.hpp"

#include <algorithm>

namespace acc::launcher::commands {
namespace {

using Backend = RendezvousPlan::Backend;
using settings::Environment;

/// A second job that could result from the same plan, with other values for everything that is
/// known only when the job starts (port, ranks, folders). A variable whose value differs between
/// the two jobs is not known to the plan.
struct OtherJob {
  LaunchPlan plan;
  Assignment assignment;
};

OtherJob other_job(const LaunchPlan& plan, const Assignment& planned) {
  OtherJob other{plan, planned};
  other.plan.output.directory += "?";
  Assignment& assignment = other.assignment;
  const bool meets = plan.rendezvous.backend == Backend::c10d;
  if (meets || plan.rendezvous.port == 0) {
    ++assignment.master_port;
  }
  if (meets) {
    assignment.master_addr += "?";
  }
  if (!knows_ranks(plan)) {
    ++assignment.machine_rank;
    ++assignment.num_machines;
    assignment.first_rank += assignment.local_world_size;
    assignment.world_size += assignment.local_world_size;
  }
  if (plan.layout.num_machines > 1) {  // the other machines may have other roles
    ++assignment.first_role_rank;
    ++assignment.role_world_size;
  }
  return other;
}

/// Returns the value of a variable, or empty if it is known only when the job starts.
ChangedVariable::Value value_of(const std::string& name, const Environment& planned,
                                const Environment& other) {
  const auto found = planned.find(name);
  const auto twin = other.find(name);
  const bool fixed = found != planned.end() && twin != other.end() && found->second == twin->second;
  return fixed ? ChangedVariable::Value(found->second) : std::nullopt;
}

/// True if all workers inherit the variable from `parent` unchanged.
bool is_parents(const std::string& name, const std::vector<ChangedVariable::Value>& values,
                const Environment& parent) {
  const auto found = parent.find(name);
  return found != parent.end() &&
         std::ranges::all_of(values, [&](const auto& value) { return value == found->second; });
}

}  // namespace

std::vector<ShownSetting> settings_in_force(const LaunchPlan& plan) {
  std::vector<ShownSetting> shown;
  const auto add = [&](const settings::Settings& settings, bool of_launch) {
    for (const settings::SettingRow& row : settings.table()) {
      if (settings::applies(row.section, origin_of(plan.mode)) &&
          (of_launch || row.section != settings::Section::launch)) {
        shown.push_back({row.key, settings.text(row), &settings.source(row)});
      }
    }
  };
  add(plan.settings, true);
  if (plan.file_settings) {
    add(*plan.file_settings, false);
  }
  return shown;
}

bool knows_ranks(const LaunchPlan& plan) noexcept {
  return plan.layout.num_processes &&
         (plan.rendezvous.backend != Backend::c10d || plan.layout.num_machines == 1);
}

std::optional<ShardGroups> shard_groups(const LaunchPlan& plan) {
  if (!plan.layout.num_processes) {
    return std::nullopt;
  }
  const settings::ShardingSettings& sharding = plan.sharding;
  const int total = *plan.layout.num_processes;
  if (sharding.strategy == settings::Strategy::no_shard) {
    return ShardGroups{1, total};
  }
  const bool hybrid = settings::switches(sharding.strategy).replicate;
  const int local = sharding.shard_size > 0 ? sharding.shard_size : plan.layout.local_world_size;
  const int shard = hybrid ? local : total;
  return ShardGroups{shard, total / shard};
}

// Builds the environment of each local worker for the plan and for a second job, and compares them
// with each other and with `parent`.
EnvironmentChanges environment_changes(const LaunchPlan& plan, const Environment& parent) {
  const Assignment planned = planned_assignment(plan, plan.rendezvous.port);
  const OtherJob other = other_job(plan, planned);
  std::vector<Environment> environments;
  std::vector<Environment> others;
  for (int index = 0; index < plan.layout.local_world_size; ++index) {
    const int local_rank = first_local_rank(plan.layout) + index;
    environments.push_back(worker_environment(plan, planned, parent, local_rank));
    others.push_back(worker_environment(other.plan, other.assignment, parent, local_rank));
  }
  EnvironmentChanges changes;
  for (const auto& [name, ignored] : environments.front()) {
    std::vector<ChangedVariable::Value> values;
    for (std::size_t i = 0; i < environments.size(); ++i) {
      values.push_back(value_of(name, environments[i], others[i]));
    }
    if (is_parents(name, values, parent)) {
      continue;
    }
    if (std::ranges::all_of(values, [&](const auto& value) { return value == values.front(); })) {
      values.resize(1);
    }
    changes.set.push_back({name, std::move(values)});
  }
  for (const auto& [name, ignored] : parent) {
    if (!environments.front().contains(name)) {
      changes.removed.push_back(name);
    }
  }
  return changes;
}

}  // namespace acc::launcher::commands
