#include "acc/launcher/launch_plan.hpp"

namespace acc::launcher {
namespace {

/// torchrun's variables (PyTorch 2.13, torch/distributed/elastic/agent).
plugins::Environment torchrun_identity(const LaunchPlan& plan, const Assignment& assignment,
                                       int local_rank) {
  const std::string local = std::to_string(local_rank);
  const std::string attempt = std::to_string(assignment.restart_count);
  const std::string rank = std::to_string(assignment.first_rank + local_rank);
  const std::string world_size = std::to_string(assignment.world_size);
  return {
      {"RANK", rank},
      {"LOCAL_RANK", local},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(assignment.local_world_size)},
      {"GROUP_RANK", std::to_string(assignment.machine_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(assignment.num_machines)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"ROLE_NAME", plan.role},
      {"MASTER_ADDR", assignment.master_addr},
      {"MASTER_PORT", std::to_string(assignment.master_port)},
      {"TORCHELASTIC_RUN_ID", assignment.run_id},
      {"TORCHELASTIC_RESTART_COUNT", attempt},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan.max_restarts)},
      // Machine 0's acclaunch serves the TCPStore; every worker, rank 0 too, is a client.
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE",
       plan.output.directory + "/attempt_" + attempt + "/" + local + "/error.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
  };
}

}  // namespace

Assignment planned_assignment(const LaunchPlan& plan, std::uint16_t port) {
  return {.machine_rank = plan.machine_rank,
          .num_machines = plan.num_machines,
          .first_rank = plan.machine_rank * plan.local_world_size,
          .local_world_size = plan.local_world_size,
          .world_size = plan.num_processes,
          .master_addr = plan.rendezvous.address,
          .master_port = port,
          .run_id = plan.rendezvous.run_id,
          .restart_count = 0};
}

plugins::Environment worker_environment(const LaunchPlan& plan, const Assignment& assignment,
                                        const plugins::Environment& parent, int local_rank) {
  plugins::Environment result = parent;
  for (const std::string& name : plan.removed_variables) {
    result.erase(name);
  }
  for (const auto& [name, value] : plan.environment) {
    result[name] = value;
  }
  if (plan.identity == Identity::torchrun) {
    for (const auto& [name, value] : torchrun_identity(plan, assignment, local_rank)) {
      result[name] = value;
    }
    result.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");  // the parent's value stays
  }
  return result;
}

std::vector<std::string> worker_command(const LaunchPlan& plan, int local_rank) {
  constexpr std::string_view kMacro = "${local_rank}";
  std::vector<std::string> command = plan.command;
  for (std::string& word : command) {
    const auto at = plan.replaces_local_rank ? word.find(kMacro) : std::string::npos;
    if (at != std::string::npos) {
      word.replace(at, kMacro.size(), std::to_string(local_rank));
    }
  }
  return command;
}

}  // namespace acc::launcher
