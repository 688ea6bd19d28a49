// SPDX-License-Identifier: Apache-2.0
// Environment of one worker: the parent's variables, minus those that were for this launcher, plus
// the plan's, plus the worker's identity in the names that torchrun or DeepSpeed use.
#include "acc/base/flight_record.hpp"
#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "host/own_variables.hpp"
#include "plan/draft.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

std::string signal_list(const LaunchPlan& plan) {
  std::string list;
  for (const int signal : plan.supervision.stop_signals) {
    list += (list.empty() ? "" : ",") + plan::signal_word(signal);
  }
  return list;
}

/// `first`: that of this machine's first worker.
std::string rank_of(const LaunchPlan& plan, int first, int local_rank) {
  return std::to_string(first + local_rank - first_local_rank(plan.layout));
}

/// Returns this machine's rank and sizes as its workers see them: from the rank slot if there is
/// one launcher per rank, else from the assignment.
RankSlot node_of(const LaunchPlan& plan, const Assignment& assignment) {
  return plan.layout.rank_slot ? *plan.layout.rank_slot
                               : RankSlot{.local_rank = 0,
                                          .local_world_size = assignment.local_world_size,
                                          .node_rank = assignment.machine_rank,
                                          .num_nodes = assignment.num_machines,
                                          .local_world_sizes = assignment.local_world_sizes};
}

/// Returns torchrun's variables (PyTorch 2.13, torch/distributed/elastic/agent).
settings::Environment torchrun_identity(const LaunchPlan& plan, const Assignment& assignment,
                                        int local_rank) {
  const std::string local = std::to_string(local_rank);
  const std::string attempt = std::to_string(assignment.restart_count);
  const RankSlot node = node_of(plan, assignment);
  return {
      {"RANK", rank_of(plan, assignment.first_rank, local_rank)},
      {"LOCAL_RANK", plan.virtual_local_rank ? "0" : local},
      {"WORLD_SIZE", std::to_string(assignment.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(node.local_world_size)},
      {"GROUP_RANK", std::to_string(node.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(node.num_nodes)},
      {"ROLE_RANK", rank_of(plan, assignment.first_role_rank, local_rank)},
      {"ROLE_WORLD_SIZE", std::to_string(assignment.role_world_size)},
      {"ROLE_NAME", plan.role},
      {"MASTER_ADDR", assignment.master_addr},
      {"MASTER_PORT", std::to_string(assignment.master_port)},
      {"TORCHELASTIC_RUN_ID", assignment.run_id},
      {"TORCHELASTIC_RESTART_COUNT", attempt},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan.supervision.max_restarts)},
      {"TORCHELASTIC_ERROR_FILE",
       worker_file(plan.output, assignment.round, local_rank, "error.json")},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", signal_list(plan)},
  };
}

/// Returns the variables of DeepSpeed's launcher (0.19.8), whose CROSS_* count machines.
settings::Environment deepspeed_identity(const LaunchPlan& plan, const Assignment& assignment,
                                         int local_rank) {
  const RankSlot node = node_of(plan, assignment);
  return {
      {"RANK", rank_of(plan, assignment.first_rank, local_rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", std::to_string(assignment.world_size)},
      {"LOCAL_SIZE", std::to_string(node.local_world_size)},
      {"CROSS_RANK", std::to_string(node.node_rank)},
      {"CROSS_SIZE", std::to_string(node.num_nodes)},
      {"MASTER_ADDR", assignment.master_addr},
      {"MASTER_PORT", std::to_string(assignment.master_port)},
  };
}

settings::Environment identity_of(const LaunchPlan& plan, const Assignment& assignment,
                                  int local_rank) {
  if (plan.identity == Identity::none) {
    return {};
  }
  settings::Environment identity = plan.identity == Identity::torchrun
                                       ? torchrun_identity(plan, assignment, local_rank)
                                       : deepspeed_identity(plan, assignment, local_rank);
  // acclaunch on machine 0 serves the TCPStore, so torch must not start one in rank 0: with this
  // variable every worker is a client.
  identity["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  return identity;
}

/// Returns ACC_LOCAL_WORLD_SIZES, "2,1,2", if machines have different numbers of workers; else "".
/// torchrun has no variable for this.
std::string uneven_sizes(const RankSlot& node) {
  const std::vector<int>& sizes = node.local_world_sizes;
  if (std::ranges::count(sizes, node.local_world_size) == std::ssize(sizes)) {
    return {};
  }
  return joined(sizes);
}

/// Returns the only GPU that a worker with a virtual local rank sees.
std::string own_gpu(const settings::Environment& environment, int local_rank) {
  const std::string list = host::value_of(environment, host::variables.cuda_visible_devices);
  const auto entries = split(list, ',');
  const auto index = static_cast<std::size_t>(local_rank);
  if (entries.size() == 1) {
    return std::string(entries.front());  // the job manager has selected it
  }
  return index < entries.size() ? std::string(entries[index]) : std::to_string(local_rank);
}

}  // namespace

std::string attempt_file(const OutputPlan& output, int round, const std::string& name) {
  const char* const separator = output.keeps_directory ? "/" : ".";
  return output.directory + "/attempt_" + std::to_string(round) + separator + name;
}

std::string worker_file(const OutputPlan& output, int round, int local_rank,
                        const std::string& name) {
  const char* const separator = output.keeps_directory ? "/" : ".";
  return attempt_file(output, round, std::to_string(local_rank) + separator + name);
}

std::string trace_file(const OutputPlan& output, int machine_rank) {
  return output.trace_directory + "/machine-" + std::to_string(machine_rank) + ".json";
}

std::string flight_record_of(const OutputPlan& output, int round, int local_rank) {
  return worker_file(output, round, local_rank, "flight_record");
}

int first_local_rank(const RankLayout& layout) noexcept {
  return layout.rank_slot ? layout.rank_slot->local_rank : 0;
}

// Other machines are assumed to have the same role, too.
Assignment planned_assignment(const LaunchPlan& plan, std::uint16_t port) {
  const int machines_bring = plan.layout.num_machines * plan.layout.local_world_size;
  return {.machine_rank = plan.layout.machine_rank,
          .num_machines = plan.layout.num_machines,
          .first_rank = plan.layout.machine_rank * plan.layout.local_world_size,
          .local_world_size = plan.layout.local_world_size,
          .world_size = plan.layout.num_processes.value_or(machines_bring),
          .first_role_rank = plan.layout.machine_rank * plan.layout.local_world_size,
          .role_world_size = plan.layout.num_processes.value_or(machines_bring),
          .master_addr = plan.rendezvous.address,
          .master_port = port,
          .run_id = plan.rendezvous.run_id,
          .round = 0,
          .restart_count = 0};
}

settings::Environment environment_without_rank(const LaunchPlan& plan,
                                               const settings::Environment& parent) {
  settings::Environment result = parent;
  for (const std::string& name : plan.variables.removed) {
    result.erase(name);
  }
  // A worker that starts another acclaunch must not pass it the rank of this one.
  for (const host::OwnVariable& of_this_launcher : host::starter_variables()) {
    result.erase(std::string(of_this_launcher.name));
  }
  for (const auto& [name, value] : plan.variables.set) {
    result[name] = value;
  }
  for (const auto& [name, of_outer_launcher] : identity_of(plan, {}, 0)) {
    result.erase(name);
  }
  // The flight record, the descriptor and the secret of an outer acclaunch are for its workers
  // only.
  for (const char* of_outer_acclaunch :
       {flight::kRecordVariable, kReportVariable, settings::kJobSecretVariable,
        settings::kSnapshotMemoryVariable, settings::kMembershipVariable}) {
    result.erase(of_outer_acclaunch);
  }
  result.erase(kLocalWorldSizesVariable);
  if (plan.identity == Identity::torchrun) {
    result.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");  // keeps the parent's value
  }
  return result;
}

settings::Environment worker_environment(const LaunchPlan& plan, const Assignment& assignment,
                                         const settings::Environment& parent, int local_rank) {
  settings::Environment result = environment_without_rank(plan, parent);
  for (const auto& [name, value] : identity_of(plan, assignment, local_rank)) {
    result[name] = value;
  }
  if (plan.has_records && !plan.output.directory.empty()) {
    result[flight::kRecordVariable] = flight_record_of(plan.output, assignment.round, local_rank);
  }
  if (!plan.output.trace_directory.empty()) {
    result[kTraceVariable] = trace_file(plan.output, assignment.machine_rank);
  }
  if (!plan.output.data_record.empty()) {
    result[kDataRecordVariable] = plan.output.data_record;
  }
  if (result.contains(kDataRecordVariable)) {
    result[kDataRoundVariable] = std::to_string(assignment.round);
  }
  if (plan.identity != Identity::none && !assignment.secret.empty()) {
    result[settings::kJobSecretVariable] = assignment.secret;
  }
  if (std::string sizes = uneven_sizes(node_of(plan, assignment)); !sizes.empty()) {
    result[kLocalWorldSizesVariable] = std::move(sizes);
  }
  if (plan.virtual_local_rank) {
    result[kCudaVisibleVariable] = own_gpu(result, local_rank);
    result[kShareGpusVariable] =
        "1";  // else libacc_runtime would expect one visible GPU per worker
  }
  return result;
}

std::vector<std::string> worker_command(const LaunchPlan& plan, int local_rank) {
  constexpr std::string_view kMacro = "${local_rank}";
  std::vector<std::string> command = plan.command;
  const std::string rank = std::to_string(local_rank);
  for (std::string& word : command) {
    auto at = plan.replaces_local_rank ? word.find(kMacro) : std::string::npos;
    while (at != std::string::npos) {
      word.replace(at, kMacro.size(), rank);
      at = word.find(kMacro, at + rank.size());
    }
  }
  return command;
}

}  // namespace acc::launcher
