// SPDX-License-Identifier: Apache-2.0
#include "acc/base/json.hpp"

#include "acc/base/text.hpp"
#include "acc/launcher/explain.hpp"
#include "commands/explain/plan_view.hpp"

#include <nlohmann/json.hpp>

// Writes a plan as JSON. docs/explain.schema.json describes the format, and a test validates the
// output against it. Within one `format` number, fields may be added but not changed or removed.
namespace acc::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kFormat = 1;

/// Returns `value`, or null if it is not known.
template <typename T>
OrderedJson known_if(bool known, const T& value) {
  return known ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson settings_json(const LaunchPlan& plan) {
  OrderedJson settings = OrderedJson::array();
  for (const auto& [name, value, source] : commands::settings_in_force(plan)) {
    settings.push_back({{"name", name},
                        {"value", known_if(!value.empty(), value)},
                        {"source", settings::word_of(source->kind).name},
                        {"where", known_if(!source->where.empty(), source->where)}});
  }
  return settings;
}

OrderedJson manager_of(const LaunchPlan& plan) {
  const JobManager& manager = plan.manager;
  return manager.name.empty() ? OrderedJson()
                              : OrderedJson{{"name", manager.name},
                                            {"job", manager.job},
                                            {"detected_by", manager.detected_by}};
}

OrderedJson rank_slot_of(const LaunchPlan& plan) {
  return !plan.layout.rank_slot
             ? OrderedJson()
             : OrderedJson{{"local_rank", plan.layout.rank_slot->local_rank},
                           {"local_world_size", plan.layout.rank_slot->local_world_size},
                           {"node_rank", plan.layout.rank_slot->node_rank},
                           {"num_nodes", plan.layout.rank_slot->num_nodes}};
}

OrderedJson start_of(const LaunchPlan& plan) {
  if (!plan.start) {
    return {};
  }
  OrderedJson machines = OrderedJson::array();
  for (const RemoteMachine& machine : plan.start->machines) {
    machines.push_back(known_if(!machine.name.empty(), machine.name));
  }
  return {{"means", settings::word_of(plan.start->means).name},
          {"machines", machines},
          {"arguments", plan.start->arguments},
          {"told", plan.start->environment}};
}

OrderedJson sharding_json(const LaunchPlan& plan) {
  const auto groups = commands::shard_groups(plan);
  return {{"strategy", settings::to_string(plan.sharding.strategy)},
          {"shard_size", groups ? OrderedJson(groups->shard_size) : OrderedJson(nullptr)},
          {"replicas", groups ? OrderedJson(groups->replicas) : OrderedJson(nullptr)},
          {"hpz_partition_size", plan.sharding.hpz_partition_size}};
}

OrderedJson machines_of(const LaunchPlan& plan) {
  return {{"min", plan.rendezvous.backend == RendezvousPlan::Backend::c10d
                      ? plan.rendezvous.min_machines
                      : plan.layout.num_machines},
          {"max", plan.layout.num_machines},
          {"machine_rank", known_if(commands::knows_ranks(plan), plan.layout.machine_rank)}};
}

OrderedJson ranks_of(const LaunchPlan& plan) {
  const bool known = commands::knows_ranks(plan);
  const Assignment planned = planned_assignment(plan, 0);
  return {{"world_size", known_if(known, planned.world_size)},
          {"local_world_size", plan.layout.local_world_size},
          {"first", known_if(known, planned.first_rank)}};
}

OrderedJson rendezvous_json(const LaunchPlan& plan) {
  const RendezvousPlan& rendezvous = plan.rendezvous;
  const bool meets = rendezvous.backend != RendezvousPlan::Backend::none;
  return {
      {"backend", settings::word_of(rendezvous.backend).name},
      {"address", known_if(meets, rendezvous.address)},
      {"port", known_if(meets && rendezvous.port != 0, rendezvous.port)},
      {"port_was_given", rendezvous.port_was_given},
      {"run_id", known_if(meets, rendezvous.run_id)},
      {"join_timeout_s", rendezvous.join_timeout.count()},
      {"last_call_timeout_s", rendezvous.last_call_timeout.count()},
      {"heartbeat_timeout_s", std::chrono::duration<double>(rendezvous.heartbeat_timeout).count()},
      {"is_host", rendezvous.is_host ? OrderedJson(*rendezvous.is_host) : OrderedJson(nullptr)}};
}

OrderedJson gpus_json(const LaunchPlan& plan) {
  OrderedJson gpus = OrderedJson::array();
  for (const Gpu& gpu : plan.gpus.devices) {
    gpus.push_back({{"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"pci_id", known_if(!gpu.pci_id.empty(), gpu.pci_id)},
                    {"numa_node", known_if(gpu.numa_node >= 0, gpu.numa_node)}});
  }
  return gpus;
}

OrderedJson names_of(OutputPlan::Streams streams) {
  OrderedJson names = OrderedJson::array();
  if ((streams & OutputPlan::kOut) != 0) {
    names.push_back("stdout");
  }
  if ((streams & OutputPlan::kErr) != 0) {
    names.push_back("stderr");
  }
  return names;
}

OrderedJson workers_json(const LaunchPlan& plan) {
  OrderedJson workers = OrderedJson::array();
  for (int index = 0; index < plan.layout.local_world_size; ++index) {
    const int local_rank = first_local_rank(plan.layout) + index;
    const auto i = static_cast<std::size_t>(index);
    const Placement placement =
        i < plan.binding.workers.size() ? plan.binding.workers[i] : Placement{};
    workers.push_back({{"local_rank", local_rank},
                       {"rank", known_if(commands::knows_ranks(plan),
                                         planned_assignment(plan, 0).first_rank + index)},
                       {"gpu", known_if(placement.gpu >= 0, placement.gpu)},
                       {"cpus", known_if(!placement.cpus.empty(), number_list(placement.cpus))},
                       {"numa_node", known_if(placement.numa_node >= 0, placement.numa_node)},
                       {"to_console", names_of(plan.output.console_of(local_rank))},
                       {"to_file", names_of(plan.output.files_of(local_rank))}});
  }
  return workers;
}

OrderedJson value_of(const commands::ChangedVariable::Value& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson environment_json(const LaunchPlan& plan, const settings::Environment& parent) {
  const commands::EnvironmentChanges changes = commands::environment_changes(plan, parent);
  OrderedJson set = OrderedJson::object();
  OrderedJson by_local_rank = OrderedJson::object();
  for (const commands::ChangedVariable& variable : changes.set) {
    set[variable.name] = value_of(variable.values.front());
    for (std::size_t i = 0; i < variable.values.size() && variable.values.size() > 1; ++i) {
      by_local_rank[variable.name].push_back(value_of(variable.values[i]));
    }
  }
  return {{"set", set}, {"by_local_rank", by_local_rank}, {"removed", changes.removed}};
}

/// Splits an error message into one text per fault. A line that begins with a blank continues the
/// fault of the previous line.
OrderedJson faults_of(const std::string& message) {
  OrderedJson faults = OrderedJson::array();
  std::string fault;
  for (const std::string_view line : split(message, '\n')) {
    if (!fault.empty() && !line.starts_with(' ')) {
      faults.push_back(fault);
      fault.clear();
    }
    fault += (fault.empty() ? "" : "\n") + std::string(line);
  }
  faults.push_back(fault);
  return faults;
}

std::string text_of(const OrderedJson& json) {
  // Paths and variables may contain invalid UTF-8, for which dump() would throw by default.
  return lossy_text_of_json(json, 2) + "\n";
}

}  // namespace

std::string explain_json(std::string_view front_end, const LaunchPlan& plan,
                         const settings::Environment& parent) {
  return text_of({{"format", kFormat},
                  {"acclaunch", ACC_VERSION},
                  {"face", front_end},
                  {"faults", OrderedJson::array()},
                  {"notices", plan.notices},
                  {"settings", settings_json(plan)},
                  {"manager", manager_of(plan)},
                  {"start", start_of(plan)},
                  {"seat", rank_slot_of(plan)},
                  {"mode", settings::word_of(plan.mode).name},
                  {"device", settings::to_string(plan.device)},
                  {"sharding", sharding_json(plan)},
                  {"machines", machines_of(plan)},
                  {"ranks", ranks_of(plan)},
                  {"rendezvous", rendezvous_json(plan)},
                  {"max_restarts", plan.supervision.max_restarts},
                  {"shutdown_timeout_s", plan.supervision.shutdown_timeout.count()},
                  {"log_directory", known_if(plan.output.keeps_directory, plan.output.directory)},
                  {"appended_file",
                   plan.appended_file ? OrderedJson(plan.appended_file->path) : OrderedJson()},
                  {"gpus", gpus_json(plan)},
                  {"numa_binding", settings::word_of(plan.binding.policy).name},
                  {"workers", workers_json(plan)},
                  {"identity", settings::word_of(plan.identity).name},
                  {"environment", environment_json(plan, parent)},
                  {"working_directory", plan.working_directory},
                  {"command", known_if(!plan.command.empty(), plan.command)}});
}

std::string explain_refusal_json(std::string_view front_end, const std::string& message) {
  return text_of({{"format", kFormat},
                  {"acclaunch", ACC_VERSION},
                  {"face", front_end},
                  {"faults", faults_of(message)}});
}

}  // namespace acc::launcher
