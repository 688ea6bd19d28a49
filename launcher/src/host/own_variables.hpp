// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/base/variables.hpp"
#include "acc/settings/environment.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher::host {

/// A variable that acclaunch itself reads.
struct OwnVariable {
  std::string_view name;
  std::string_view use;  ///< description in docs/environment.md
};

/// All variables that acclaunch reads, except those of settings (SettingRow), in the order of
/// docs/environment.md. A test fails for a variable that is read in launcher/src/ and not listed
/// here.
struct OwnVariables {
  OwnVariable compat{"ACC_COMPAT", "same as `--compat`: [compat.md](compat.md)"};
  OwnVariable simulate_gpus{
      "ACC_SIMULATE_GPUS",
      "number of GPUs to plan for, which need not exist; for `explain` on a login node"};
  OwnVariable share_gpus{kShareGpusVariable,
                         "`1`: allow more workers than GPUs on a machine; they share the GPUs"};
  OwnVariable device{
      kDeviceVariable,
      "`cpu` or `cuda`, for torchrun and deepspeed, which have no flag for the device"};
  OwnVariable engine{
      "ACC_ENGINE",
      "same as the setting `engine`; workers have it, with the value `acc`, if that is chosen"};
  OwnVariable machine_rank{"ACC_MACHINE_RANK",
                           "rank of this machine; this one and those up to `ACC_CONTROL` are set "
                           "by an acclaunch that starts machines"};
  OwnVariable num_machines{"ACC_NUM_MACHINES", "number of machines of the job"};
  OwnVariable main_process_ip{"ACC_MAIN_PROCESS_IP", "address of machine 0"};
  OwnVariable main_process_port{"ACC_MAIN_PROCESS_PORT", "port of machine 0"};
  OwnVariable local_processes{"ACC_LOCAL_PROCESSES", "number of workers of each machine, 8,8,4"};
  OwnVariable hosts{"ACC_HOSTS", "all machines and their slots, node0:0,1@node1:0,1"};
  OwnVariable job_id{"ACC_JOB_ID", "run id of the job"};
  OwnVariable control{
      "ACC_CONTROL",
      "`stdin`: the acclaunch that started this one sends control messages on standard input"};
  // The job reads these itself, so that no token is in the plan, which `explain` prints.
  OwnVariable token{
      kTokenVariable,
      "token that the acclaunch that started this one has made for the job; use the next variable"};
  OwnVariable token_file{
      kTokenFileVariable,
      "file with the token of the rendezvous: [security](rendezvous.md#security)"};
  OwnVariable ca_file{kCaFileVariable,
                      "certificate authority of the rendezvous server's certificate; default: it "
                      "is not checked, only the token"};
  OwnVariable client_certificate{kClientCertificateVariable,
                                 "own certificate, for a rendezvous server that requires one"};
  OwnVariable client_key{kClientKeyVariable, "private key of ACC_RENDEZVOUS_CLIENT_CERT"};
  // complete_etcd_files reads these.
  OwnVariable etcd_ca{"ETCDCTL_CACERT",
                      "certificate authority of etcd, with `--rdzv-conf protocol=https`; default: "
                      "those of the system"};
  OwnVariable etcd_certificate{"ETCDCTL_CERT", "own certificate, for an etcd that requires one"};
  OwnVariable etcd_key{"ETCDCTL_KEY", "private key of ETCDCTL_CERT"};
  OwnVariable pdsh_options{
      "PDSH_SSH_ARGS_APPEND",
      "with `--launcher pdsh`: options for the ssh of pdsh, before those of acclaunch"};
  OwnVariable sys_root{"ACC_SYS_ROOT", "where sysfs is mounted, if not in /sys"};
  OwnVariable cuda_visible_devices{kCudaVisibleVariable, "GPUs that the job may use"};
  OwnVariable omp_num_threads{"OMP_NUM_THREADS",
                              "passed on unchanged unless a flag sets the number of threads"};
  OwnVariable torch_autoload{"TORCH_DEVICE_BACKEND_AUTOLOAD",
                             "must not be 0 if `cpu_backend` or `engine` is acc"};
  OwnVariable record{kRecordVariable,
                     "folder in which workers record what they compute, for [`acclaunch "
                     "compare`](compare.md), which sets it"};
  OwnVariable record_steps{kRecordStepsVariable, "number of steps after which workers then end"};
  OwnVariable record_random{kRecordRandomVariable,
                            "`keep`, `equal` or `off`: what workers then do with random modules"};
  OwnVariable mpi_local_size{
      "MPI_LOCALNRANKS", "number of processes on this machine of an mpirun that started acclaunch"};
  OwnVariable open_mpi_local_size{"OMPI_COMM_WORLD_LOCAL_SIZE", "the same, set by Open MPI"};
  OwnVariable mvapich_local_size{"MV2_COMM_WORLD_LOCAL_SIZE", "the same, set by MVAPICH"};
  OwnVariable log{kLogVariable,
                  "levels of components, such as `launcher:debug`: [messages](jobs.md#messages)"};
  OwnVariable error_file{"TORCHELASTIC_ERROR_FILE",
                         "file in which a failed job records its first failure, like torchrun"};
  OwnVariable deepspeed_environment_file{
      "DS_ENV_FILE", "name of the file with variables for all machines; default: .deepspeed_env"};
  OwnVariable python{"PYTHON_EXEC",
                     "Python interpreter; default: that of the virtual environment in which "
                     "acclaunch is installed, else python3"};
  OwnVariable python_path{
      "PYTHONPATH",
      "in DeepSpeed mode the working directory is added; if `cpu_backend` or "
      "`engine` is acc, or `ACC_RECORD` is set, the folder of the package acclaunch"};
  OwnVariable path{"PATH", "folders in which programs are looked up"};
  OwnVariable home{"HOME", "folder of .cache and .deepspeed_env; replaces `~` in `config`"};
  OwnVariable xdg_cache_home{"XDG_CACHE_HOME", "cache folder; default: $HOME/.cache"};
  OwnVariable hf_home{
      "HF_HOME", "folder of accelerate/default_config.yaml; default: $XDG_CACHE_HOME/huggingface"};
  OwnVariable temporary_folder{
      "TMPDIR", "folder for files that are removed at the end of the job; default: /tmp"};
  OwnVariable terminal{kTerminalVariable, "`dumb`: no menus in `config`, no status line"};
  OwnVariable no_color{kNoColourVariable,
                       "if set, no colours in the prefixes of the workers' lines"};
};
inline constexpr OwnVariables variables;

/// Returns the variables that an acclaunch sets for the launchers that it starts on machines. These
/// launchers do not pass them on to workers.
std::span<const OwnVariable> starter_variables() noexcept;

/// True if another acclaunch started this one, sends control messages on its standard input and
/// reads its answers.
bool is_controlled(const settings::Environment& environment);

/// Returns all of `variables`, and those of flags of every front end (SettingRow::variable).
std::span<const OwnVariable> own_variables() noexcept;

/// Variables of a job manager that acclaunch reads.
struct ManagerVariables {
  std::string_view manager;
  std::string_view names;  ///< separated by spaces
};

/// Returns all variables that launcher/src/cluster/ reads. A test fails for one that is missing
/// here.
std::span<const ManagerVariables> manager_variables() noexcept;

/// Returns the value of a variable, or `fallback` if it is unset or empty.
std::string value_of(const settings::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback = "");

}  // namespace acc::launcher::host
