// SPDX-License-Identifier: Apache-2.0

#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {
namespace {

/// True if all tasks are on this machine.
bool is_on_one_machine(const JobEnvironment& place) {
  return place.num_tasks && place.local_size && place.num_tasks->value == place.local_size->value;
}

/// Returns the number of machines that the tasks run on: as reported, else the number of tasks
/// divided by those of this machine. Empty if that does not divide evenly.
std::optional<int> count_nodes(const JobEnvironment& place) {
  if (place.num_nodes) {
    return place.num_nodes->value;
  }
  if (!place.num_tasks || !place.local_size || place.local_size->value == 0 ||
      place.num_tasks->value % place.local_size->value != 0) {
    return std::nullopt;
  }
  return place.num_tasks->value / place.local_size->value;
}

/// Adds the allocation's hosts to a task of an mpirun. mpirun normally places rank 0 on the first
/// host; rank 0 itself can check this, and a notice tells if it is elsewhere. The list of hosts is
/// used only if the tasks run on all of them, because a subset cannot be identified.
void add_hosts(const Allocation& allocation, const HostFacts& facts, JobEnvironment& place) {
  const auto& hosts = *allocation.hosts;
  const auto index = index_of_host(hosts.value, facts.hostname);
  const bool rank_0_is_elsewhere = place.rank && place.rank->value == 0 && index.value_or(0) != 0;
  place.notices.clear();
  if (rank_0_is_elsewhere) {
    place.address.reset();
    place.notices.push_back(place.manager.name + " has placed rank 0 on " + facts.hostname +
                            ", which is not the first host of " + hosts.where +
                            ", where the other ranks expect it; pass --main_process_ip");
  } else {
    place.address = {hosts.value.front(), hosts.where};
  }
  const auto nodes = count_nodes(place);
  if (!nodes || *nodes != static_cast<int>(hosts.value.size())) {
    return;
  }
  place.hosts = hosts;
  place.num_nodes = {*nodes, place.num_nodes ? place.num_nodes->where : hosts.where};
  if (index && !place.node_rank) {
    place.node_rank = {*index, hosts.where};
  }
}

}  // namespace

std::optional<Allocation> find_allocation(const JobVariables& job) {
  return first_of(first_of(slurm_allocation(job), lsf_allocation(job)), pbs_allocation(job));
}

JobEnvironment place_of_script(const Allocation& allocation, std::string_view own_name) {
  JobEnvironment place;
  place.manager = allocation.manager;
  place.is_task = false;
  place.run_id = allocation.run_id;
  place.port = {port_of(allocation.number), allocation.run_id.where};
  place.hosts = allocation.hosts;
  place.tasks_per_node = allocation.slots;
  if (place.hosts) {
    const auto& [names, where] = *place.hosts;
    place.address = {names.front(), where};
    place.num_nodes = {static_cast<int>(names.size()), where};
    if (index_of_host(names, own_name) == 0) {
      place.node_rank = {0, where};
    }
  }
  return place;
}

void add_allocation(const Allocation& allocation, const HostFacts& facts, JobEnvironment& place) {
  place.manager.job += " in " + allocation.manager.job;
  place.manager.detected_by += ", " + allocation.manager.detected_by;
  const bool named = !place.run_id.value.empty();
  place.run_id = {allocation.run_id.value + (named ? "." + place.run_id.value : ""),
                  allocation.run_id.where + (named ? ", " + place.run_id.where : "")};
  if (!place.port) {
    place.port = {port_of(allocation.number), allocation.run_id.where};
  }
  if (allocation.hosts && !is_on_one_machine(place)) {
    add_hosts(allocation, facts, place);
  }
}

}  // namespace acc::launcher::cluster
