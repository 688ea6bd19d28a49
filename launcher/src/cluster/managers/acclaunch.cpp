// SPDX-License-Identifier: Apache-2.0
// A launcher that another acclaunch started on its machine (remote_launch/). Its place is in ACC_*
// variables (host/own_variables.hpp).
#include "acc/base/error.hpp"
#include "cluster/managers/managers.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher::cluster {
namespace {

std::string name_of(const host::OwnVariable& variable) {
  return std::string(variable.name);
}

void check(const JobEnvironment& place) {
  if (!place.num_nodes || !place.address || !place.port) {
    throw Error(Errc::config, place.node_rank->where + " needs " +
                                  name_of(host::variables.num_machines) + ", " +
                                  name_of(host::variables.main_process_ip) + " and " +
                                  name_of(host::variables.main_process_port) + " as well");
  }
  check_below(place.node_rank, place.num_nodes);
  if (place.tasks_per_node &&
      place.tasks_per_node->value.size() != static_cast<std::size_t>(place.num_nodes->value)) {
    throw Error(
        Errc::config,
        contradiction(place.num_nodes->where, std::to_string(place.num_nodes->value),
                      place.tasks_per_node->where,
                      "has " + std::to_string(place.tasks_per_node->value.size()) + " numbers"));
  }
}

}  // namespace

std::optional<JobEnvironment> place_of_acclaunch(const JobVariables& job, const HostFacts&) {
  constexpr const host::OwnVariables& own = host::variables;
  const auto machine = job.number(name_of(own.machine_rank));
  if (!machine) {
    return std::nullopt;
  }
  JobEnvironment place;
  const auto id = job.text(name_of(own.job_id));
  place.manager = {"acclaunch", "acclaunch job" + (id ? " " + id->value : ""), machine->where, true,
                   false};
  place.run_id = id.value_or(Sourced<std::string>{});
  place.node_rank = machine;
  place.num_nodes = job.number(name_of(own.num_machines));
  place.address = job.text(name_of(own.main_process_ip));
  place.port = job.port(name_of(own.main_process_port));
  place.tasks_per_node = job.numbers(name_of(own.local_processes));
  check(place);
  return place;
}

}  // namespace acc::launcher::cluster
