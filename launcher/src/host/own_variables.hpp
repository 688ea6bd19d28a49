// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/base/variables.hpp"
#include "acc/plugins/environment.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher::host {

/// A variable that acclaunch itself reads.
struct OwnVariable {
  std::string_view name;
  std::string_view use;  ///< description in docs/environment.md
};

/// All variables that acclaunch reads, except those of settings (SettingRow::environment). A test
/// fails for a variable that is read in launcher/src/ and not listed here.
namespace variables {
inline constexpr OwnVariable compat{"ACC_COMPAT", "same as `--compat`: [compat.md](compat.md)"};
inline constexpr OwnVariable simulate_gpus{
    "ACC_SIMULATE_GPUS",
    "number of GPUs to plan for, which need not exist; for `explain` on a login node"};
inline constexpr OwnVariable share_gpus{
    kShareGpusVariable, "`1`: allow more workers than GPUs on a machine; they share the GPUs"};
inline constexpr OwnVariable device{
    kDeviceVariable,
    "`cpu` or `cuda`, for torchrun and deepspeed, which have no flag for the device"};
inline constexpr OwnVariable engine{
    "ACC_ENGINE",
    "same as the setting `engine`; workers have it, with the value `acc`, if that is chosen"};
inline constexpr OwnVariable machine_rank{
    "ACC_MACHINE_RANK",
    "rank of this machine; this one and those up to `ACC_CONTROL` are set by an acclaunch that "
    "starts machines"};
inline constexpr OwnVariable num_machines{"ACC_NUM_MACHINES", "number of machines of the job"};
inline constexpr OwnVariable main_process_ip{"ACC_MAIN_PROCESS_IP", "address of machine 0"};
inline constexpr OwnVariable main_process_port{"ACC_MAIN_PROCESS_PORT", "port of machine 0"};
inline constexpr OwnVariable local_processes{"ACC_LOCAL_PROCESSES",
                                             "number of workers of each machine, 8,8,4"};
inline constexpr OwnVariable hosts{"ACC_HOSTS",
                                   "all machines and their slots, node0:0,1@node1:0,1"};
inline constexpr OwnVariable job_id{"ACC_JOB_ID", "run id of the job"};
inline constexpr OwnVariable control{
    "ACC_CONTROL",
    "`stdin`: the acclaunch that started this one sends control messages on standard input"};
inline constexpr OwnVariable pdsh_options{
    "PDSH_SSH_ARGS_APPEND",
    "with `--launcher pdsh`: options for the ssh of pdsh, before those of acclaunch"};
inline constexpr OwnVariable sys_root{"ACC_SYS_ROOT", "where sysfs is mounted, if not in /sys"};
inline constexpr OwnVariable cuda_visible_devices{kCudaVisibleVariable,
                                                  "GPUs that the job may use"};
inline constexpr OwnVariable omp_num_threads{
    "OMP_NUM_THREADS", "passed on unchanged unless a flag sets the number of threads"};
inline constexpr OwnVariable torch_autoload{"TORCH_DEVICE_BACKEND_AUTOLOAD",
                                            "must not be 0 if `cpu_backend` or `engine` is acc"};
inline constexpr OwnVariable mpi_local_size{
    "MPI_LOCALNRANKS", "number of processes on this machine of an mpirun that started acclaunch"};
inline constexpr OwnVariable open_mpi_local_size{"OMPI_COMM_WORLD_LOCAL_SIZE",
                                                 "the same, set by Open MPI"};
inline constexpr OwnVariable mvapich_local_size{"MV2_COMM_WORLD_LOCAL_SIZE",
                                                "the same, set by MVAPICH"};
inline constexpr OwnVariable shutdown_timeout{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                                              "same as `--shutdown_timeout`, in seconds"};
inline constexpr OwnVariable stuck_timeout{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
                                           "same as `--stuck_timeout`, in seconds"};
inline constexpr OwnVariable log_line_prefix_template{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                                                      "same as `--log_line_prefix_template`"};
inline constexpr OwnVariable log_format{kLogFormatVariable, "same as `--log_format`"};
inline constexpr OwnVariable log_level{kLogLevelVariable, "same as `--log_level`"};
inline constexpr OwnVariable log{
    kLogVariable, "levels of components, such as `launcher:debug`; ignored with `--log_level`"};
inline constexpr OwnVariable error_file{
    "TORCHELASTIC_ERROR_FILE",
    "file in which a failed job records its first failure, like torchrun"};
inline constexpr OwnVariable deepspeed_environment_file{
    "DS_ENV_FILE", "name of the file with variables for all machines; default: .deepspeed_env"};
inline constexpr OwnVariable python{
    "PYTHON_EXEC",
    "Python interpreter; default: that of the virtual environment in which acclaunch is installed, "
    "else python3"};
inline constexpr OwnVariable python_path{"PYTHONPATH",
                                         "in DeepSpeed mode the working directory is added; if "
                                         "`cpu_backend` or `engine` is acc, the folder of the "
                                         "package acclaunch"};
inline constexpr OwnVariable path{"PATH", "folders in which programs are looked up"};
inline constexpr OwnVariable home{"HOME",
                                  "folder of .cache and .deepspeed_env; replaces `~` in `config`"};
inline constexpr OwnVariable xdg_cache_home{"XDG_CACHE_HOME",
                                            "cache folder; default: $HOME/.cache"};
inline constexpr OwnVariable hf_home{
    "HF_HOME", "folder of accelerate/default_config.yaml; default: $XDG_CACHE_HOME/huggingface"};
inline constexpr OwnVariable temporary_folder{
    "TMPDIR", "folder for files that are removed at the end of the job; default: /tmp"};
inline constexpr OwnVariable terminal{kTerminalVariable,
                                      "`dumb`: no menus in `config`, no status line"};
inline constexpr OwnVariable no_color{kNoColourVariable,
                                      "if set, no colours in the prefixes of the workers' lines"};
}  // namespace variables

/// Returns the variables that an acclaunch sets for the launchers that it starts on machines. These
/// launchers do not pass them on to workers.
std::span<const OwnVariable> starter_variables() noexcept;

/// True if another acclaunch started this one, sends control messages on its standard input and
/// reads its answers.
bool is_controlled(const plugins::Environment& environment);

/// Returns the variables above in the order of docs/environment.md.
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
std::string value_of(const plugins::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback = "");

}  // namespace acc::launcher::host
