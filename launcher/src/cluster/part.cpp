#include "cluster/part.hpp"

#include <algorithm>
#include <numeric>

namespace acc::launcher {
namespace {

template <typename T>
std::string shown(const Said<T>& said) {
  return said.where + "=" + std::to_string(said.value);
}

/// Returns the number of tasks on this machine: as reported, else an equal share of all tasks.
int tasks_on_this_node(const ClusterPlace& place) {
  if (place.local_size) {
    return place.local_size->value;
  }
  const int nodes = place.num_nodes ? place.num_nodes->value : 1;
  return std::max(1, place.num_tasks ? place.num_tasks->value / nodes : 1);
}

}  // namespace

std::optional<int> num_nodes(const ClusterPlace& place) {
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

Part part_in(const ClusterPlace& place, const Given& num_processes) {
  const std::optional<int> nodes = num_nodes(place);
  if (!place.is_task) {
    return nodes.value_or(1) > 1 ? Part::starter : Part::machine;
  }
  if (!place.num_tasks || !nodes || place.num_tasks->value == *nodes) {
    return Part::machine;
  }
  const std::string tasks = place.manager.job + " has " + std::to_string(place.num_tasks->value) +
                            " tasks on " + std::to_string(*nodes) +
                            (*nodes == 1 ? " machine (" : " machines (") + shown(*place.num_tasks) +
                            ")";
  if (place.num_tasks->value < *nodes) {
    throw Error(Errc::config, tasks + ": fewer than one per machine");
  }
  const auto wanted = read_number(num_processes.text);
  if (wanted && *wanted != place.num_tasks->value) {
    throw Error(Errc::config, tasks + ", but " + num_processes.where + " is " + num_processes.text +
                                  ": start one task per machine, or one per worker");
  }
  return Part::worker;
}

Seat seat_in(const ClusterPlace& place) {
  if (!place.rank || !place.local_rank) {
    throw Error(Errc::config, place.manager.job + " has several tasks on a machine, and " +
                                  place.manager.name +
                                  " does not tell this task its rank on the machine: start one "
                                  "task per machine");
  }
  Seat seat;
  seat.local_rank = place.local_rank->value;
  seat.local_world_size = tasks_on_this_node(place);
  seat.num_nodes = num_nodes(place).value_or(1);
  seat.node_rank =
      place.node_rank ? place.node_rank->value : place.rank->value / seat.local_world_size;
  if (place.tasks_per_node) {
    seat.local_world_sizes = place.tasks_per_node->value;
  }
  return seat;
}

std::vector<int> wished_workers(const ClusterPlace& place) {
  if (!place.tasks_per_node ||
      std::ranges::all_of(place.tasks_per_node->value, [](int count) { return count == 1; })) {
    return {};
  }
  return place.tasks_per_node->value;
}

}  // namespace acc::launcher
