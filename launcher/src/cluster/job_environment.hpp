// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/settings/environment.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::cluster {

/// Facts from the job manager about the job and this process's place in it. Facts that the manager
/// does not report are empty.
struct JobEnvironment {
  JobManager manager;  ///< "Slurm", "Open MPI", "Kubernetes", …; "acclaunch" if it started this one

  /// True for one of several processes that the manager started, per machine or per rank. False for
  /// the job's script or shell, which runs once and starts the other processes itself.
  bool is_task = true;

  Sourced<std::string> run_id;  ///< unique to this job, step and requeue; usable in a file name
  std::optional<Sourced<std::uint16_t>> port;   ///< reported, or derived from the job's id
  std::optional<Sourced<std::string>> address;  ///< address of the machine with rank 0

  std::optional<Sourced<std::vector<std::string>>> hosts;  ///< of the step or job, by node rank
  std::optional<Sourced<int>> num_nodes;
  std::optional<Sourced<int>> node_rank;
  std::optional<Sourced<int>> num_tasks;
  std::optional<Sourced<int>> rank;        ///< rank of this task
  std::optional<Sourced<int>> local_rank;  ///< rank among the tasks of this machine
  std::optional<Sourced<int>> local_size;  ///< number of tasks on this machine
  std::optional<Sourced<std::vector<int>>> tasks_per_node;  ///< tasks or workers, by node rank

  std::vector<std::string> notices{};  ///< one line each
};

/// Finds the innermost job manager that started this process. Order: acclaunch itself
/// (own_variables.hpp), Open MPI, Hydra, PALS, Flux, jsrun, PMIx, Slurm, LSF, PBS, PyTorchJob,
/// Kubernetes. For an MPI job inside an allocation, MPI tells the ranks and the allocation the
/// hosts. Returns empty in a terminal, and inside a worker (LOCAL_RANK is set), where the outer
/// launcher has used the manager's facts already. Reads files that variables name. Throws
/// Error(config) with the name of a variable whose value is invalid or contradicts another one, for
/// example if a step has hosts that its job does not have.
std::optional<JobEnvironment> find_job_environment(const settings::Environment& environment,
                                                   const HostFacts& facts);

}  // namespace acc::launcher::cluster
