#pragma once

#include "cluster/job_variables.hpp"

namespace acc::launcher {

/// Machines that Slurm, LSF or PBS lends to a job: whose script this is, or inside of which an
/// mpirun started this process.
struct Allocation {
  JobManager manager;
  Said<std::string> run_id;  ///< "slurm-17"
  std::uint64_t number = 0;  ///< to make a port of
  std::optional<Said<std::vector<std::string>>> hosts;
  std::optional<Said<std::vector<int>>> slots;  ///< asked for on each of them
};

/// Nothing outside of a job; without hosts where the file that names them cannot be read, which is
/// so beside the first machine of a PBS job. Throws Error(config), as find_place; for Slurm also
/// where the job is a heterogeneous one, which has several node lists.
std::optional<Allocation> slurm_allocation(const JobVariables& job);
std::optional<Allocation> lsf_allocation(const JobVariables& job);
std::optional<Allocation> pbs_allocation(const JobVariables& job);

/// Whichever there is.
std::optional<Allocation> find_allocation(const JobVariables& job);

/// The script of such a job, which runs once, normally on its first machine. `own_name`: the name
/// of this one.
ClusterPlace place_of_script(const Allocation& allocation, std::string_view own_name);

/// Tells a task of an mpirun which hosts it is among. They are those of the allocation where there
/// are as many as the tasks are on; the first of them has rank 0, if not mpirun itself.
void add_allocation(const Allocation& allocation, const HostFacts& facts, ClusterPlace& place);

}  // namespace acc::launcher
