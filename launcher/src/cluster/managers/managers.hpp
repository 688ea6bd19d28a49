#pragma once

#include "cluster/allocation.hpp"
#include "cluster/job_variables.hpp"

namespace acc::launcher {

/// Each gives this process's place, if it was started by that manager; find_place says the rest.
using FindPlace = std::optional<ClusterPlace>(const JobVariables& job, const HostFacts& facts);

FindPlace place_of_acclaunch;
FindPlace place_of_open_mpi;     ///< mpirun of Open MPI 4 and 5
FindPlace place_of_hydra;        ///< mpiexec of MPICH and Intel MPI
FindPlace place_of_pals;         ///< mpiexec of Cray PALS
FindPlace place_of_flux;         ///< flux run
FindPlace place_of_jsrun;        ///< jsrun of LSF
FindPlace place_of_pmix;         ///< prterun, and others that speak PMIx alone
FindPlace place_of_slurm;        ///< srun, sbatch, salloc
FindPlace place_of_lsf;          ///< bsub
FindPlace place_of_pbs;          ///< qsub
FindPlace place_of_pytorch_job;  ///< Kubeflow, and clouds that set the same variables
FindPlace place_of_indexed_job;  ///< Kubernetes

/// The variables in which a manager says which of its tasks this is; empty: it does not say that.
struct TaskNames {
  std::string rank, num_tasks, local_rank, local_size;
};

/// Reads them. Where all tasks are on one machine, that is the only node, and rank 0 is at
/// 127.0.0.1. Throws Error(config), also where they contradict each other.
void read_task(const JobVariables& job, const TaskNames& names, ClusterPlace& place);

/// Throws Error(config) where a rank is not below its count; either may not be told.
void check_below(const std::optional<Said<int>>& rank, const std::optional<Said<int>>& count);

/// For a manager that says where it runs itself, and no more: rank 0 is normally there too. `here`:
/// this process is on that machine. Rank 0 that is elsewhere gets a notice.
void expect_rank_0_at(const Said<std::string>& manager_host, bool here, ClusterPlace& place);

/// A task of srun, and not a script or shell that has an allocation.
bool is_slurm_task(const JobVariables& job, const HostFacts& facts);

}  // namespace acc::launcher
