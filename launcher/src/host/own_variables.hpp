#pragma once

#include "acc/plugins/environment.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

/// An environment variable that acclaunch itself reads.
struct OwnVariable {
  std::string_view name;
  std::string_view use;  ///< its meaning, as printed in docs/environment.md
};

/// All of them, except those of settings (SettingRow::environment). A test searches the sources for
/// variables that are missing here.
namespace variables {
inline constexpr OwnVariable compat{"ACC_COMPAT", "the same as `--compat`: [compat.md](compat.md)"};
inline constexpr OwnVariable simulate_gpus{
    "ACC_SIMULATE_GPUS",
    "number of GPUs to plan for; they need not exist, for example for `explain` on a login node"};
inline constexpr OwnVariable share_gpus{
    "ACC_SHARE_GPUS", "`1`: permits more workers than GPUs on a machine"};
inline constexpr OwnVariable device{
    "ACC_DEVICE",
    "`cpu` or `cuda`, if neither flags nor file select the device: torchrun, deepspeed"};
inline constexpr OwnVariable machine_rank{
    "ACC_MACHINE_RANK", "set by an acclaunch that starts the machines: the machine rank"};
inline constexpr OwnVariable num_machines{
    "ACC_NUM_MACHINES", "set in the same way: number of machines"};
inline constexpr OwnVariable main_process_ip{
    "ACC_MAIN_PROCESS_IP", "set in the same way: address of machine 0"};
inline constexpr OwnVariable main_process_port{
    "ACC_MAIN_PROCESS_PORT", "set in the same way: port on machine 0"};
inline constexpr OwnVariable local_processes{
    "ACC_LOCAL_PROCESSES", "set in the same way: number of workers of each machine, 8,8,4"};
inline constexpr OwnVariable hosts{
    "ACC_HOSTS", "set in the same way: all machines and their slots, node0:0,1@node1:0,1"};
inline constexpr OwnVariable job_id{"ACC_JOB_ID", "set in the same way: the run ID"};
inline constexpr OwnVariable control{
    "ACC_CONTROL", "`stdin`: the acclaunch that started this one sends commands on standard input"};
inline constexpr OwnVariable pdsh_options{
    "PDSH_SSH_ARGS_APPEND",
    "with `--launcher pdsh`: options for its ssh, placed before those of acclaunch"};
inline constexpr OwnVariable sys_root{"ACC_SYS_ROOT", "mount point of sysfs, if not /sys"};
inline constexpr OwnVariable cuda_visible_devices{"CUDA_VISIBLE_DEVICES", "GPUs that may be used"};
inline constexpr OwnVariable omp_num_threads{"OMP_NUM_THREADS", "kept unless a flag sets it"};
inline constexpr OwnVariable mpi_local_size{
    "MPI_LOCALNRANKS", "number of processes on this machine of the mpirun that started acclaunch"};
inline constexpr OwnVariable open_mpi_local_size{"OMPI_COMM_WORLD_LOCAL_SIZE", "the same"};
inline constexpr OwnVariable mvapich_local_size{"MV2_COMM_WORLD_LOCAL_SIZE", "the same"};
inline constexpr OwnVariable shutdown_timeout{
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "the same as `--shutdown_timeout`, in seconds"};
inline constexpr OwnVariable stuck_timeout{
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "the same as `--stuck_timeout`, in seconds"};
inline constexpr OwnVariable log_line_prefix_template{
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "the same as `--log_line_prefix_template`"};
inline constexpr OwnVariable error_file{
    "TORCHELASTIC_ERROR_FILE", "file for the first failure of a failed job, as in torchrun"};
inline constexpr OwnVariable deepspeed_environment_file{
    "DS_ENV_FILE", "name of the file with variables for all machines, if not .deepspeed_env"};
inline constexpr OwnVariable python{
    "PYTHON_EXEC", "Python interpreter for Python programs, if not python3"};
inline constexpr OwnVariable python_path{
    "PYTHONPATH", "in DeepSpeed mode the working directory is added"};
inline constexpr OwnVariable path{"PATH", "search path for programs"};
inline constexpr OwnVariable home{
    "HOME", "folder in which .cache and .deepspeed_env are searched; `~` in `config`"};
inline constexpr OwnVariable xdg_cache_home{"XDG_CACHE_HOME", "cache folder, if not $HOME/.cache"};
inline constexpr OwnVariable hf_home{
    "HF_HOME", "folder of accelerate/default_config.yaml, if not $XDG_CACHE_HOME/huggingface"};
inline constexpr OwnVariable temporary_folder{"TMPDIR", "folder for temporary files of the job"};
inline constexpr OwnVariable terminal{"TERM", "`dumb`: no menus in `config`, no status line"};
inline constexpr OwnVariable no_color{
    "NO_COLOR", "if set: no colours in the prefixes of the workers' lines"};
}  // namespace variables

/// Variables that an acclaunch sets for the launchers that it starts on machines. Those do not pass
/// them on to workers.
std::span<const OwnVariable> starter_variables() noexcept;

/// True if another launcher started this one, reads its replies, and sends commands on its standard
/// input.
bool is_controlled(const plugins::Environment& environment);

/// All variables above, in the order of docs/environment.md.
std::span<const OwnVariable> own_variables() noexcept;

/// Variables of a cluster manager that acclaunch reads.
struct ManagerVariables {
  std::string_view manager;
  std::string_view names;  ///< separated by blanks
};

/// All managers. A test searches launcher/src/cluster/ for variables that are missing here.
std::span<const ManagerVariables> manager_variables() noexcept;

/// Returns the value, or `fallback` if the variable is unset or empty.
std::string value_of(const plugins::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback = "");

}  // namespace acc::launcher
