// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {
namespace {

std::optional<Sourced<int>> number(const JobVariables& job, const std::string& name) {
  return name.empty() ? std::nullopt : job.number(name);
}

}  // namespace

void check_below(const std::optional<Sourced<int>>& rank,
                 const std::optional<Sourced<int>>& count) {
  if (rank && count && rank->value >= count->value) {
    throw Error(Errc::config, contradiction(rank->where, std::to_string(rank->value), count->where,
                                            "is " + std::to_string(count->value)));
  }
}

void read_task(const JobVariables& job, const TaskNames& names, JobEnvironment& place) {
  place.rank = number(job, names.rank);
  place.num_tasks = number(job, names.num_tasks);
  place.local_rank = number(job, names.local_rank);
  place.local_size = number(job, names.local_size);
  check_below(place.rank, place.num_tasks);
  check_below(place.local_rank, place.local_size);
  if (!place.num_tasks || !place.local_size) {
    return;
  }
  const std::string both = names.num_tasks + ", " + names.local_size;
  if (place.local_size->value > place.num_tasks->value) {
    throw Error(Errc::config,
                contradiction(names.local_size, std::to_string(place.local_size->value),
                              names.num_tasks, "is " + std::to_string(place.num_tasks->value)));
  }
  if (place.local_size->value == place.num_tasks->value) {
    place.num_nodes = {1, both};
    place.node_rank = {0, both};
    place.address = {"127.0.0.1", both};
  }
}

void expect_rank_0_at(const Sourced<std::string>& manager_host, bool here, JobEnvironment& place) {
  if (place.address) {
    return;
  }
  if (here || !place.rank || place.rank->value != 0) {
    place.address = manager_host;
    return;
  }
  place.notices.push_back(place.manager.name + " runs on " + manager_host.value +
                          ", where the other ranks expect rank 0, but has placed rank 0 on another "
                          "machine; pass its address with --main_process_ip");
}

}  // namespace acc::launcher::cluster
