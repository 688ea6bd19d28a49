// SPDX-License-Identifier: Apache-2.0
#include "cluster/job_environment.hpp"

#include "acc/base/error.hpp"
#include "cluster/managers/managers.hpp"

#include <array>

namespace acc::launcher::cluster {
namespace {

/// A job manager that acclaunch recognises.
struct Manager {
  FindPlace* find;
  bool is_in_allocation;  ///< may run inside an allocation of Slurm, LSF or PBS
};

/// Job managers, the innermost first. The order matters, because variables overlap: srun also sets
/// those of PMI and PMIx, Open MPI's mpirun those of PMIx, jsrun those of both, and every process
/// keeps the variables of the outer managers.
constexpr std::array kManagers = {
    Manager{place_of_acclaunch, false},   Manager{place_of_open_mpi, true},
    Manager{place_of_hydra, true},        Manager{place_of_pals, true},
    Manager{place_of_flux, false},        Manager{place_of_jsrun, false},
    Manager{place_of_pmix, true},         Manager{place_of_slurm, false},
    Manager{place_of_lsf, false},         Manager{place_of_pbs, false},
    Manager{place_of_pytorch_job, false}, Manager{place_of_indexed_job, false},
};

/// Throws Error(config) for a count below 1.
void check_counts(const JobEnvironment& place) {
  for (const auto& count : {place.num_nodes, place.num_tasks, place.local_size}) {
    if (count && count->value < 1) {
      throw Error(Errc::config, count->where + " must be a number of at least 1, got \"" +
                                    std::to_string(count->value) + "\"");
    }
  }
}

}  // namespace

std::optional<JobEnvironment> find_job_environment(const settings::Environment& environment,
                                                   const HostFacts& facts) {
  const JobVariables job(environment);
  // LOCAL_RANK is set for workers. A launcher inside a worker starts a job of its own.
  const bool is_below_a_launcher = job.has("LOCAL_RANK");
  for (const auto& [find, is_in_allocation] : kManagers) {
    if (is_below_a_launcher && find != place_of_acclaunch) {
      return std::nullopt;
    }
    auto place = find(job, facts);
    if (place && is_in_allocation) {
      if (const auto allocation = find_allocation(job)) {
        add_allocation(*allocation, facts, *place);
      }
    }
    if (place) {
      check_counts(*place);
      return place;
    }
  }
  return std::nullopt;
}

}  // namespace acc::launcher::cluster
