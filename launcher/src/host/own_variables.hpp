#pragma once

#include "acc/plugins/environment.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

/// A variable that acclaunch itself reads, and what for.
struct OwnVariable {
  std::string_view name;
  std::string_view use;  ///< as docs/environment.md says it
};

/// Every one is here, but for those of settings (SettingRow::environment); a test looks for others.
namespace variables {
inline constexpr OwnVariable compat{"ACC_COMPAT", "as `--compat`: [compat.md](compat.md)"};
inline constexpr OwnVariable simulate_gpus{
    "ACC_SIMULATE_GPUS",
    "plan for that many GPUs, which need not exist, as for `explain` on a login node"};
inline constexpr OwnVariable share_gpus{"ACC_SHARE_GPUS",
                                        "`1`: more workers than GPUs on a machine are no mistake"};
inline constexpr OwnVariable device{
    "ACC_DEVICE", "`cpu` or `cuda`, where neither flags nor file choose: torchrun, deepspeed"};
inline constexpr OwnVariable machine_rank{
    "ACC_MACHINE_RANK", "which machine of a job this is, of an acclaunch that starts the machines"};
inline constexpr OwnVariable num_machines{"ACC_NUM_MACHINES", "likewise: how many there are"};
inline constexpr OwnVariable main_process_ip{"ACC_MAIN_PROCESS_IP",
                                             "likewise: the address of machine 0"};
inline constexpr OwnVariable main_process_port{"ACC_MAIN_PROCESS_PORT", "likewise: its port"};
inline constexpr OwnVariable local_processes{"ACC_LOCAL_PROCESSES",
                                             "likewise: the workers of each machine, 8,8,4"};
inline constexpr OwnVariable hosts{"ACC_HOSTS",
                                   "likewise: all machines and their slots, node0:0,1@node1:0,1"};
inline constexpr OwnVariable job_id{"ACC_JOB_ID", "likewise: the run id"};
inline constexpr OwnVariable control{
    "ACC_CONTROL", "`stdin`: the acclaunch that started this one speaks on its standard input"};
inline constexpr OwnVariable pdsh_options{
    "PDSH_SSH_ARGS_APPEND", "with `--launcher pdsh`: options of its ssh, which go before ours"};
inline constexpr OwnVariable sys_root{"ACC_SYS_ROOT", "where sysfs is mounted, if not in /sys"};
inline constexpr OwnVariable cuda_visible_devices{"CUDA_VISIBLE_DEVICES",
                                                  "which of the GPUs there are"};
inline constexpr OwnVariable omp_num_threads{"OMP_NUM_THREADS",
                                             "stays as it is where no flag says otherwise"};
inline constexpr OwnVariable mpi_local_size{
    "MPI_LOCALNRANKS", "how many processes an mpirun that started acclaunch has on this machine"};
inline constexpr OwnVariable open_mpi_local_size{"OMPI_COMM_WORLD_LOCAL_SIZE", "the same"};
inline constexpr OwnVariable mvapich_local_size{"MV2_COMM_WORLD_LOCAL_SIZE", "the same"};
inline constexpr OwnVariable shutdown_timeout{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                                              "as `--shutdown_timeout`, in seconds"};
inline constexpr OwnVariable stuck_timeout{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
                                           "as `--stuck_timeout`, in seconds"};
inline constexpr OwnVariable log_line_prefix_template{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                                                      "as `--log_line_prefix_template`"};
inline constexpr OwnVariable error_file{
    "TORCHELASTIC_ERROR_FILE", "where a failed job leaves its first failure, as torchrun does"};
inline constexpr OwnVariable deepspeed_environment_file{
    "DS_ENV_FILE", "name of the file with variables for all machines, if not .deepspeed_env"};
inline constexpr OwnVariable python{"PYTHON_EXEC", "the Python of Python programs, if not python3"};
inline constexpr OwnVariable python_path{"PYTHONPATH",
                                         "in DeepSpeed mode the working directory is added"};
inline constexpr OwnVariable path{"PATH", "where programs are looked up"};
inline constexpr OwnVariable home{
    "HOME", "where .cache and .deepspeed_env are looked for; what `~` stands for in `config`"};
inline constexpr OwnVariable xdg_cache_home{"XDG_CACHE_HOME", "the same, if not $HOME/.cache"};
inline constexpr OwnVariable hf_home{
    "HF_HOME", "where accelerate/default_config.yaml is, if not in $XDG_CACHE_HOME/huggingface"};
inline constexpr OwnVariable temporary_folder{"TMPDIR", "for files that go with the job"};
inline constexpr OwnVariable terminal{"TERM", "`dumb`: no menus in `config`, no status line"};
inline constexpr OwnVariable no_color{"NO_COLOR", "set: no colours before the workers' lines"};
}  // namespace variables

/// What an acclaunch tells those that it starts on machines, and they nobody else.
std::span<const OwnVariable> starter_variables() noexcept;

/// A starter hears this launcher's answers, and speaks on its standard input.
bool is_controlled(const plugins::Environment& environment);

/// Those above, in the order of docs/environment.md.
std::span<const OwnVariable> own_variables() noexcept;

/// What a manager of jobs tells its processes, as far as acclaunch listens.
struct ManagerVariables {
  std::string_view manager;
  std::string_view names;  ///< parted by blanks
};

/// Every one that launcher/src/cluster/ reads is here; a test looks for others.
std::span<const ManagerVariables> manager_variables() noexcept;

/// The value, or `fallback` where it is unset or empty.
std::string value_of(const plugins::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback = "");

}  // namespace acc::launcher
