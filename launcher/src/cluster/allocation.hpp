// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/job_variables.hpp"

namespace acc::launcher::cluster {

/// Machines that Slurm, LSF or PBS allocated to a job. This process is the job's script, or a task
/// that an mpirun inside the job started.
struct Allocation {
  JobManager manager;
  Sourced<std::string> run_id;  ///< "slurm-17"
  std::uint64_t number = 0;     ///< number of the job, from which `port_of` derives a port
  std::optional<Sourced<std::vector<std::string>>> hosts;
  std::optional<Sourced<std::vector<int>>> slots;  ///< tasks requested on each host
};

/// Returns the allocation, or empty outside of a job. `hosts` is empty if the file that lists them
/// cannot be read: PBS writes it on the first machine of a job only. Throws Error(config) like
/// find_job_environment, and for a heterogeneous Slurm job, which has several node lists.
std::optional<Allocation> slurm_allocation(const JobVariables& job);
std::optional<Allocation> lsf_allocation(const JobVariables& job);
std::optional<Allocation> pbs_allocation(const JobVariables& job);

/// Returns the first of these that exists.
std::optional<Allocation> find_allocation(const JobVariables& job);

/// Returns the place of a job's script, which runs once, normally on the job's first machine.
/// `own_name` is this machine's name.
JobEnvironment place_of_script(const Allocation& allocation, std::string_view own_name);

/// Adds the facts of an allocation to the place of a task of mpirun: job name, run id, port, and
/// the hosts if the tasks run on all of them. The first host is expected to have rank 0.
void add_allocation(const Allocation& allocation, const HostFacts& facts, JobEnvironment& place);

}  // namespace acc::launcher::cluster
