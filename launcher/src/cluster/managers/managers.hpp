// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/allocation.hpp"
#include "cluster/job_variables.hpp"

namespace acc::launcher::cluster {

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
