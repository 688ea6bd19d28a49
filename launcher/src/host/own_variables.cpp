#include "host/own_variables.hpp"

#include <array>

namespace acc::launcher {

std::span<const OwnVariable> own_variables() noexcept {
  using namespace variables;
  static constexpr std::array kAll = {compat,
                                      simulate_gpus,
                                      share_gpus,
                                      device,
                                      machine_rank,
                                      num_machines,
                                      main_process_ip,
                                      main_process_port,
                                      local_processes,
                                      hosts,
                                      job_id,
                                      control,
                                      sys_root,
                                      cuda_visible_devices,
                                      omp_num_threads,
                                      mpi_local_size,
                                      open_mpi_local_size,
                                      mvapich_local_size,
                                      shutdown_timeout,
                                      stuck_timeout,
                                      log_line_prefix_template,
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
      local_processes, hosts,        job_id,          control};
  return kAll;
}

std::string value_of(const plugins::Environment& environment, const OwnVariable& variable,
                     const std::string& fallback) {
  return plugins::variable(environment, std::string(variable.name), fallback);
}

}  // namespace acc::launcher
