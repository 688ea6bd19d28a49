#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/settings_table.hpp"

namespace acc::launcher {
namespace {

/// An outer acclaunch's settings are none of this one's.
void drop_own_variables(plugins::Environment& environment) {
  for (const plugins::SettingRow& row : plugins::settings_table()) {
    environment.erase(plugins::own_variable(row));
  }
}

}  // namespace

plugins::Environment worker_environment(const LaunchPlan& plan, const plugins::Environment& parent,
                                        int local_rank, std::uint16_t port) {
  plugins::Environment result = parent;
  drop_own_variables(result);
  for (const auto& [name, value] : plan.environment) {
    result[name] = value;
  }
  const std::string local = std::to_string(local_rank);
  const std::string rank = std::to_string(plan.machine_rank * plan.local_world_size + local_rank);
  const std::string world_size = std::to_string(plan.num_processes);
  const plugins::Environment identity = {
      {"RANK", rank},
      {"LOCAL_RANK", local},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.local_world_size)},
      {"GROUP_RANK", std::to_string(plan.machine_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(plan.num_machines)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"ROLE_NAME", plan.settings.text("role")},
      {"MASTER_ADDR", plan.main_process_ip},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_RUN_ID", plan.run_id},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", plan.settings.text("max_restarts")},
      // Machine 0's acclaunch serves the TCPStore; every worker, rank 0 too, is a client.
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", plan.error_directory + "/attempt_0/" + local + "/error.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
  };
  for (const auto& [name, value] : identity) {
    result[name] = value;
  }
  result.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");  // the parent's value stays
  return result;
}

}  // namespace acc::launcher
