// SPDX-License-Identifier: Apache-2.0
// Slurm: tasks of srun (a step), and the script or shell of sbatch and salloc. The variables of the
// job reach every process in it, so they are compared with those of the step: a process that took
// its ranks from a wrong set of variables would make the whole job wait.
#include "acc/base/error.hpp"
#include "acc/settings/faults.hpp"
#include "cluster/managers/managers.hpp"

#include <cctype>
#include <numeric>
#include <set>

namespace acc::launcher::cluster {
namespace {

using settings::Faults;
using Hosts = std::optional<Sourced<std::vector<std::string>>>;

/// Step numbers from this one on have a special meaning: the batch script, an interactive shell,
/// and so on (slurm.h: SLURM_BATCH_SCRIPT).
constexpr std::uint64_t kFirstSpecialStep = 4'294'967'280;

std::string text(int number) {
  return std::to_string(number);
}

Hosts hosts_of_job(const JobVariables& job) {
  return first_of(job.hosts("SLURM_JOB_NODELIST"), job.hosts("SLURM_NODELIST"));
}

/// True if this process runs in a batch script, by the title of its ancestor `slurmstepd:
/// [JOB.STEP]`. A job that was submitted inside a step of another job inherits that step's
/// variables, but its script runs in a step named "batch".
bool is_below_script(const HostFacts& facts) {
  for (const auto& command : facts.ancestors) {
    if (!command.empty() && command.front().starts_with("slurmstepd: [")) {
      const std::string& title = command.front();
      const auto dot = title.find('.');
      return dot != std::string::npos && dot + 1 < title.size() &&
             std::isdigit(static_cast<unsigned char>(title[dot + 1])) == 0;
    }
  }
  return false;
}

/// Adds the fault `A is 3, but B names 2 hosts` if they differ.
void check_count(const std::optional<Sourced<int>>& count, const Hosts& hosts, Faults& faults) {
  if (count && hosts && count->value != static_cast<int>(hosts->value.size())) {
    faults.add(contradiction(count->where, text(count->value), hosts->where,
                             "names " + std::to_string(hosts->value.size()) + " hosts"));
  }
}

/// Compares the tasks per node with the number of hosts, the total number of tasks and the local
/// rank.
void check_tasks_per_node(const JobEnvironment& place, Faults& faults) {
  if (!place.tasks_per_node) {
    return;
  }
  const auto& [tasks, where] = *place.tasks_per_node;
  if (place.hosts && tasks.size() != place.hosts->value.size()) {
    faults.add(where + " has " + std::to_string(tasks.size()) + " numbers, but " +
               place.hosts->where + " names " + std::to_string(place.hosts->value.size()) +
               " hosts");
  }
  const auto sum = std::accumulate(tasks.begin(), tasks.end(), std::int64_t{0});
  if (place.num_tasks && sum != place.num_tasks->value) {
    faults.add(contradiction(place.num_tasks->where, text(place.num_tasks->value), where,
                             "sums up to " + std::to_string(sum)));
  }
  const bool knows_node =
      place.node_rank && static_cast<std::size_t>(place.node_rank->value) < tasks.size();
  if (knows_node && place.local_rank) {
    const int here = tasks[static_cast<std::size_t>(place.node_rank->value)];
    if (place.local_rank->value >= here) {
      faults.add(contradiction(place.local_rank->where, text(place.local_rank->value), where,
                               "has " + text(here) + " for this node"));
    }
  }
}

/// Checks that the host list has this node's name at the position of its node rank.
void check_node(const JobVariables& job, const JobEnvironment& place, Faults& faults) {
  if (!place.node_rank || !place.hosts) {
    return;
  }
  const auto& [hosts, where] = *place.hosts;
  const auto& [node, node_where] = *place.node_rank;
  if (static_cast<std::size_t>(node) >= hosts.size()) {
    faults.add(contradiction(node_where, text(node), where,
                             "names " + std::to_string(hosts.size()) + " hosts"));
    return;
  }
  const auto name = job.text("SLURMD_NODENAME");
  const std::string& listed = hosts[static_cast<std::size_t>(node)];
  if (name && name->value != listed) {
    faults.add(contradiction(name->where, name->value, where,
                             "names " + listed + " for " + node_where + " " + text(node)));
  }
}

/// Adds a fault if the step has hosts that the job does not have, and a notice if the step has
/// fewer hosts than the job.
void compare_with_job(const JobVariables& job, JobEnvironment& place, Faults& faults) {
  const Hosts all = hosts_of_job(job);
  if (!all || !place.hosts) {
    return;
  }
  const std::set<std::string> known(all->value.begin(), all->value.end());
  std::string others;
  for (const std::string& host : place.hosts->value) {
    if (!known.contains(host)) {
      others += (others.empty() ? "" : ", ") + host;
    }
  }
  if (!others.empty()) {
    faults.add(place.hosts->where + " (" + job.text(place.hosts->where)->value + ") lists " +
               others + ", which " + all->where + " (" + job.text(all->where)->value +
               ") does not list");
  } else if (place.hosts->value.size() < known.size()) {
    place.notices.push_back(place.manager.job + " has " +
                            std::to_string(place.hosts->value.size()) + " of the job's " +
                            std::to_string(known.size()) + " nodes");
  }
}

void check(const JobVariables& job, JobEnvironment& place) {
  Faults faults;
  check_count(place.num_nodes, place.hosts, faults);
  check_tasks_per_node(place, faults);
  check_node(job, place, faults);
  if (place.rank && place.num_tasks && place.rank->value >= place.num_tasks->value) {
    faults.add(contradiction(place.rank->where, text(place.rank->value), place.num_tasks->where,
                             "is " + text(place.num_tasks->value)));
  }
  compare_with_job(job, place, faults);
  faults.raise();
}

/// Returns the place of a task of srun. Run id and port include the step and the number of
/// requeues, so that two steps of a job, or a requeued job, do not meet.
JobEnvironment place_in_step(const JobVariables& job, const Allocation& allocation) {
  const auto step = job.big_number("SLURM_STEP_ID");
  const auto restart = job.number("SLURM_RESTART_COUNT");
  const std::string where = "SLURM_JOB_ID, " + step->where;
  JobEnvironment place;
  place.manager = allocation.manager;
  place.manager.job += ", step " + std::to_string(step->value);
  place.manager.detected_by = where;
  const std::string id = std::to_string(job.big_number("SLURM_JOB_ID")->value);
  place.run_id = {"slurm-" + id + "." + std::to_string(step->value) +
                      (restart ? ".r" + text(restart->value) : ""),
                  where + (restart ? ", " + restart->where : "")};
  // The script itself has port_of(number); steps are numbered from 1 here, to differ from it.
  place.port = {port_of(allocation.number + 977 * (step->value + 1)), where};
  place.hosts = first_of(job.hosts("SLURM_STEP_NODELIST"), allocation.hosts);
  place.num_nodes = job.number("SLURM_STEP_NUM_NODES");
  place.node_rank = job.number("SLURM_NODEID");
  place.rank = job.number("SLURM_PROCID");
  place.num_tasks = first_of(job.number("SLURM_STEP_NUM_TASKS"), job.number("SLURM_NTASKS"));
  place.local_rank = job.number("SLURM_LOCALID");
  place.tasks_per_node = job.counts("SLURM_STEP_TASKS_PER_NODE");
  check(job, place);
  if (place.hosts) {
    place.address = {place.hosts->value.front(), place.hosts->where};
    place.num_nodes = {static_cast<int>(place.hosts->value.size()), place.hosts->where};
  }
  if (place.tasks_per_node && place.node_rank) {
    const auto node = static_cast<std::size_t>(place.node_rank->value);
    if (node >= place.tasks_per_node->value.size()) {
      throw Error(
          Errc::config,
          contradiction(
              place.node_rank->where, std::to_string(node), place.tasks_per_node->where,
              "counts " + std::to_string(place.tasks_per_node->value.size()) + " machines"));
    }
    place.local_size = {place.tasks_per_node->value.at(node), place.tasks_per_node->where};
  }
  return place;
}

}  // namespace

bool is_slurm_task(const JobVariables& job, const HostFacts& facts) {
  const auto step = job.has("SLURM_JOB_ID") && job.has("SLURM_PROCID")
                        ? job.big_number("SLURM_STEP_ID")
                        : std::nullopt;
  return step && step->value < kFirstSpecialStep && !is_below_script(facts);
}

std::optional<Allocation> slurm_allocation(const JobVariables& job) {
  const auto id = job.big_number("SLURM_JOB_ID");
  if (!id) {
    return std::nullopt;
  }
  const std::string name = "Slurm job " + std::to_string(id->value);
  if (job.has("SLURM_HET_SIZE")) {
    throw Error(Errc::not_supported,
                "SLURM_HET_SIZE: " + name +
                    " is a heterogeneous job, whose components have separate node "
                    "lists; acclaunch supports jobs and steps of one component only");
  }
  const auto restart = job.number("SLURM_RESTART_COUNT");
  Allocation allocation;
  allocation.manager = {"Slurm", name, id->where, true, true};
  allocation.run_id = {
      "slurm-" + std::to_string(id->value) + (restart ? ".r" + text(restart->value) : ""),
      restart ? id->where + ", " + restart->where : id->where};
  allocation.number = id->value;
  allocation.hosts = hosts_of_job(job);
  if (job.has("SLURM_NTASKS") || job.has("SLURM_NTASKS_PER_NODE")) {
    allocation.slots = job.counts("SLURM_TASKS_PER_NODE");
  }
  return allocation;
}

std::optional<JobEnvironment> place_of_slurm(const JobVariables& job, const HostFacts& facts) {
  const auto allocation = slurm_allocation(job);
  if (!allocation) {
    return std::nullopt;
  }
  if (is_slurm_task(job, facts)) {
    return place_in_step(job, *allocation);
  }
  const auto name = job.text("SLURMD_NODENAME");
  JobEnvironment place = place_of_script(*allocation, name ? name->value : "");
  Faults faults;
  check_count(first_of(job.number("SLURM_JOB_NUM_NODES"), job.number("SLURM_NNODES")), place.hosts,
              faults);
  check_tasks_per_node(place, faults);
  faults.raise();
  return place;
}

}  // namespace acc::launcher::cluster
