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
/// find_job_environment, and Error(not_supported) for a heterogeneous Slurm job, which has several
/// node lists.
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

/// Returns this process's place if the manager started it, else empty. find_job_environment
/// describes the errors.
using FindPlace = std::optional<JobEnvironment>(const JobVariables& job, const HostFacts& facts);

FindPlace place_of_acclaunch;
FindPlace place_of_open_mpi;     ///< mpirun of Open MPI 4 and 5
FindPlace place_of_hydra;        ///< mpiexec of MPICH and Intel MPI
FindPlace place_of_pals;         ///< mpiexec of Cray PALS
FindPlace place_of_flux;         ///< flux run
FindPlace place_of_jsrun;        ///< jsrun of LSF
FindPlace place_of_pmix;         ///< prterun, and other launchers that set only PMIx variables
FindPlace place_of_slurm;        ///< srun, sbatch, salloc
FindPlace place_of_lsf;          ///< bsub
FindPlace place_of_pbs;          ///< qsub
FindPlace place_of_pytorch_job;  ///< Kubeflow, and clouds that set the same variables
FindPlace place_of_indexed_job;  ///< Kubernetes

/// Names of the variables with a task's ranks and counts; an empty name means that the manager has
/// no such variable.
struct TaskNames {
  std::string rank, num_tasks, local_rank, local_size;
};

/// Reads these variables into `place`. If all tasks are on this machine, it also sets one node and
/// 127.0.0.1 as the address of rank 0. Throws Error(config) for invalid or contradictory values.
void read_task(const JobVariables& job, const TaskNames& names, JobEnvironment& place);

/// Throws Error(config) if a rank is not below its count. Does nothing if either is unknown.
void check_below(const std::optional<Sourced<int>>& rank, const std::optional<Sourced<int>>& count);

/// Sets the address of rank 0 for a manager that reports only its own host, where rank 0 normally
/// runs too. `here` is true if this process is on that machine. If rank 0 runs elsewhere, it gets a
/// notice and no address.
void expect_rank_0_at(const Sourced<std::string>& manager_host, bool here, JobEnvironment& place);

/// True for a task of srun; false for a script or shell that has an allocation.
bool is_slurm_task(const JobVariables& job, const HostFacts& facts);

}  // namespace acc::launcher::cluster
