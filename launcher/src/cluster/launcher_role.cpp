// SPDX-License-Identifier: Apache-2.0
#include "cluster/launcher_role.hpp"

#include <algorithm>
#include <numeric>

namespace acc::launcher::cluster {
namespace {

template <typename T>
std::string shown(const Sourced<T>& said) {
  return said.where + "=" + std::to_string(said.value);
}

/// Returns the number of tasks on this machine: as reported, else an equal share of all tasks.
int tasks_on_this_node(const JobEnvironment& place) {
  if (place.local_size) {
    return place.local_size->value;
  }
  const int nodes = place.num_nodes ? place.num_nodes->value : 1;
  return std::max(1, place.num_tasks ? place.num_tasks->value / nodes : 1);
}

}  // namespace

std::optional<int> num_nodes(const JobEnvironment& place) {
  if (place.num_nodes) {
    return place.num_nodes->value;
  }
  if (place.hosts) {
    return static_cast<int>(place.hosts->value.size());
  }
  if (place.num_tasks && place.local_size) {
    const int local = std::max(1, place.local_size->value);
    return (place.num_tasks->value + local - 1) / local;
  }
  return std::nullopt;
}

LauncherRole launcher_role(const JobEnvironment& place, const Sourced<std::string>& num_processes) {
  const std::optional<int> nodes = num_nodes(place);
  if (!place.is_task) {
    return nodes.value_or(1) > 1 ? LauncherRole::remote_launcher : LauncherRole::machine;
  }
  if (!place.num_tasks || !nodes || place.num_tasks->value == *nodes) {
    return LauncherRole::machine;
  }
  const std::string tasks = place.manager.job + " has " + std::to_string(place.num_tasks->value) +
                            " tasks on " + std::to_string(*nodes) +
                            (*nodes == 1 ? " machine (" : " machines (") + shown(*place.num_tasks) +
                            ")";
  if (place.num_tasks->value < *nodes) {
    throw Error(Errc::config, tasks + ": fewer than one per machine");
  }
  const auto wanted = read_number(num_processes.value);
  if (wanted && *wanted != place.num_tasks->value) {
    throw Error(Errc::config, tasks + ", but " + num_processes.where + " is " +
                                  num_processes.value +
                                  ": start one task per machine, or one per worker");
  }
  return LauncherRole::worker;
}

RankSlot rank_slot_in(const JobEnvironment& place) {
  if (!place.rank || !place.local_rank) {
    throw Error(Errc::config, place.manager.job + " has several tasks on a machine, and " +
                                  place.manager.name +
                                  " does not tell this task its rank on the machine: start one "
                                  "task per machine");
  }
  RankSlot rank_slot;
  rank_slot.local_rank = place.local_rank->value;
  rank_slot.local_world_size = tasks_on_this_node(place);
  rank_slot.num_nodes = num_nodes(place).value_or(1);
  rank_slot.node_rank =
      place.node_rank ? place.node_rank->value : place.rank->value / rank_slot.local_world_size;
  if (place.tasks_per_node) {
    rank_slot.local_world_sizes = place.tasks_per_node->value;
  }
  return rank_slot;
}

std::vector<int> wished_workers(const JobEnvironment& place) {
  if (!place.tasks_per_node ||
      std::ranges::all_of(place.tasks_per_node->value, [](int count) { return count == 1; })) {
    return {};
  }
  return place.tasks_per_node->value;
}

}  // namespace acc::launcher::cluster
