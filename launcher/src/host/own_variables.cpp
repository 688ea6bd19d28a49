// SPDX-License-Identifier: Apache-2.0
#include "host/own_variables.hpp"

#include <array>

namespace acc::launcher::host {

namespace {

// The job reads these itself, so that no token is in the plan, which `explain` prints.
constexpr OwnVariable kToken{
    kTokenVariable,
    "token that the acclaunch that started this one has made for the job; use the next variable"};
constexpr OwnVariable kTokenFile{
    kTokenFileVariable,
    "file with the token of the rendezvous (docs/rendezvous.md, Security); implies `--secure`"};
constexpr OwnVariable kCaFile{
    kCaFileVariable,
    "certificate authority of the rendezvous server's certificate; default: it is not checked, "
    "only the token"};
constexpr OwnVariable kClientCertificate{
    kClientCertificateVariable, "own certificate, for a rendezvous server that requires one"};
constexpr OwnVariable kClientKey{kClientKeyVariable, "private key of ACC_RENDEZVOUS_CLIENT_CERT"};
// complete_etcd_files reads these.
constexpr OwnVariable kEtcdCa{"ETCDCTL_CACERT",
                              "certificate authority of etcd, with `--rdzv-conf protocol=https`; "
                              "default: those of the system"};
constexpr OwnVariable kEtcdCertificate{"ETCDCTL_CERT",
                                       "own certificate, for an etcd that requires one"};
constexpr OwnVariable kEtcdKey{"ETCDCTL_KEY", "private key of ETCDCTL_CERT"};

}  // namespace

std::span<const OwnVariable> own_variables() noexcept {
  using namespace variables;
  static constexpr std::array kAll = {compat,
                                      simulate_gpus,
                                      share_gpus,
                                      device,
                                      engine,
                                      machine_rank,
                                      num_machines,
                                      main_process_ip,
                                      main_process_port,
                                      local_processes,
                                      hosts,
                                      job_id,
                                      control,
                                      kToken,
                                      kTokenFile,
                                      kCaFile,
                                      kClientCertificate,
                                      kClientKey,
                                      kEtcdCa,
                                      kEtcdCertificate,
                                      kEtcdKey,
                                      pdsh_options,
                                      sys_root,
                                      cuda_visible_devices,
                                      omp_num_threads,
                                      torch_autoload,
                                      mpi_local_size,
                                      open_mpi_local_size,
                                      mvapich_local_size,
                                      shutdown_timeout,
                                      stuck_timeout,
                                      log_line_prefix_template,
                                      log_format,
                                      log_level,
                                      log,
                                      error_file,
                                      deepspeed_environment_file,
                                      python,
                                      python_path,
                                      path,
                                      home,
                                      xdg_cache_home,
                                      hf_home,
                                      temporary_folder,
                                      terminal,
                                      no_color};
  return kAll;
}

std::span<const OwnVariable> starter_variables() noexcept {
  using namespace variables;
  static constexpr std::array kAll = {
      machine_rank,    num_machines, main_process_ip, main_process_port,
      local_processes, hosts,        job_id,          control,
      kToken,          kTokenFile,   kCaFile,         kClientCertificate,
      kClientKey};
  return kAll;
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

bool is_controlled(const plugins::Environment& environment) {
  return value_of(environment, variables::control) == "stdin";
}

std::string value_of(const plugins::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback) {
  return plugins::variable(environment, std::string(variable.name), fallback);
}

}  // namespace acc::launcher::host
