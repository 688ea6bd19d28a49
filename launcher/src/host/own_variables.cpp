// SPDX-License-Identifier: Apache-2.0
#include "host/own_variables.hpp"

#include "acc/launcher/setting_keys.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <list>
#include <string>
#include <vector>

namespace acc::launcher::host {

std::span<const OwnVariable> own_variables() noexcept {
  static std::list<std::string> uses;
  static const std::vector<OwnVariable> kAll = [] {
    const auto own =
        std::bit_cast<std::array<OwnVariable, sizeof variables / sizeof(OwnVariable)>>(variables);
    std::vector<OwnVariable> all(own.begin(), own.end());
    for (const settings::SettingRow& row : flag_rows::kCommon) {
      if (!row.variable.empty()) {
        uses.push_back("same as `--" + std::string(row.key) +
                       (row.unit == "s" ? "`, in seconds" : "`"));
        all.push_back({row.variable, uses.back()});
      }
    }
    return all;
  }();
  return kAll;
}

std::span<const OwnVariable> starter_variables() noexcept {
  const auto place_of = [](std::string_view name) {
    return std::ranges::find(own_variables(), name, &OwnVariable::name);
  };
  return {place_of(variables.machine_rank.name), place_of(variables.client_key.name) + 1};
}

std::span<const ManagerVariables> manager_variables() noexcept {
  static constexpr std::array kAll = {
      ManagerVariables{"any launcher of workers", "LOCAL_RANK"},
      ManagerVariables{
          "Slurm",
          "SLURM_JOB_ID SLURM_STEP_ID SLURM_RESTART_COUNT SLURM_HET_SIZE SLURM_JOB_NODELIST "
          "SLURM_NODELIST SLURM_STEP_NODELIST SLURM_JOB_NUM_NODES SLURM_NNODES "
          "SLURM_STEP_NUM_NODES SLURM_NODEID SLURMD_NODENAME SLURM_PROCID SLURM_LOCALID "
          "SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE "
          "SLURM_STEP_TASKS_PER_NODE"},
      ManagerVariables{"Open MPI",
                       "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
                       "OMPI_COMM_WORLD_LOCAL_SIZE OMPI_MCA_orte_num_nodes "
                       "OMPI_MCA_ess_base_jobid OMPI_MCA_orte_hnp_uri "
                       "OMPI_MCA_orte_local_daemon_uri"},
      ManagerVariables{"PMIx",
                       "PMIX_RANK PMIX_NAMESPACE PMIX_SERVER_URI2 PMIX_SERVER_URI21 "
                       "PMIX_SERVER_URI3 PMIX_SERVER_URI4 PMIX_SERVER_URI41"},
      ManagerVariables{"MPICH, Intel MPI",
                       "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS I_MPI_HYDRA_UUID "
                       "HYDRA_BSTRAP_PROXY_ID"},
      ManagerVariables{"Cray PALS",
                       "PALS_APID PALS_RANKID PALS_LOCAL_RANKID PALS_NODEID PMI_SIZE "
                       "PMI_LOCAL_SIZE"},
      ManagerVariables{"Flux",
                       "FLUX_JOB_ID FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID "
                       "FLUX_JOB_NNODES"},
      ManagerVariables{"LSF",
                       "LSB_JOBID LSB_JOBINDEX LSB_MCPU_HOSTS LSB_DJOB_RANKFILE LSB_HOSTS "
                       "JSM_NAMESPACE_ID JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE "
                       "JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE"},
      ManagerVariables{"PBS", "PBS_JOBID PBS_NODEFILE PBS_NODENUM"},
      ManagerVariables{"Kubernetes",
                       "KUBERNETES_SERVICE_HOST JOB_COMPLETION_INDEX JOBSET_RESTART_ATTEMPT"},
      ManagerVariables{
          "PyTorchJob",
          "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK NPROC_PER_NODE PET_NNODES PET_NODE_RANK "
          "PET_MASTER_ADDR PET_MASTER_PORT"},
  };
  return kAll;
}

bool is_controlled(const settings::Environment& environment) {
  return value_of(environment, variables.control) == "stdin";
}

std::string value_of(const settings::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback) {
  return settings::variable(environment, std::string(variable.name), fallback);
}

}  // namespace acc::launcher::host
