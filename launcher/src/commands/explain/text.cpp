// SPDX-License-Identifier: Apache-2.0
// Prints a plan as text for people. Programs should use the JSON output: this text has no stable
// format. Values from outside are escaped (printable).
#include "acc/base/text.hpp"

#include "acc/base/seconds_text.hpp"
#include "acc/launcher/explain.hpp"
#include "acc/settings/settings_table.hpp"
#include "commands/explain/plan_view.hpp"
#include "commands/text_table.hpp"
#include "report/words.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>

namespace acc::launcher {
namespace {

using Backend = RendezvousPlan::Backend;
using Lines = std::vector<std::string>;

std::string settings_text(const LaunchPlan& plan) {
  constexpr std::size_t kWidest = 44;
  std::vector<std::vector<std::string>> lines = {{"setting", "value", "source"}};
  for (const commands::ShownSetting& setting : commands::settings_in_force(plan)) {
    lines.push_back({std::string(setting.name),
                     setting.value.empty() ? "-" : printable(setting.value),
                     printable(settings::describe(*setting.source))});
  }
  return commands::text_table(lines, "<", kWidest);
}

/// Returns the lines in one indented block. The first line begins with `label`.
std::string labelled(const std::string& label, const Lines& lines) {
  constexpr std::size_t kWidth = 12;
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& word = i == 0 ? label : "";
    text += word + std::string(kWidth - word.size(), ' ') + printable(lines[i]) + "\n";
  }
  return text;
}

std::string world_of(const LaunchPlan& plan) {
  const int local = plan.layout.local_world_size;
  if (!commands::knows_ranks(plan)) {
    const std::string least = std::to_string(plan.rendezvous.min_machines);
    const std::string most = std::to_string(plan.layout.num_machines);
    return std::to_string(local) + " processes on this machine, one of " +
           (least == most ? most : least + " to " + most) + "; the rendezvous assigns the ranks";
  }
  if (plan.identity == Identity::none) {
    return "one process on this machine, without variables for ranks";
  }
  const Assignment planned = planned_assignment(plan, 0);
  const int first = planned.first_rank;
  const std::string total = std::to_string(planned.world_size);
  if (plan.layout.rank_slot) {
    return "rank " + std::to_string(first) + " of " + total + " only: local rank " +
           std::to_string(plan.layout.rank_slot->local_rank) + " of " +
           std::to_string(plan.layout.rank_slot->local_world_size) + " on machine " +
           std::to_string(plan.layout.rank_slot->node_rank) + " of " +
           std::to_string(plan.layout.rank_slot->num_nodes);
  }
  return total + " processes on " + std::to_string(plan.layout.num_machines) +
         " machine(s); ranks " + std::to_string(first) + ".." + std::to_string(first + local - 1) +
         " on this one, machine " + std::to_string(plan.layout.machine_rank);
}

std::string sharding_text(const LaunchPlan& plan) {
  const settings::ShardingSettings& sharding = plan.sharding;
  std::string text(settings::to_string(sharding.strategy));
  const auto groups = commands::shard_groups(plan);
  if (sharding.strategy != settings::Strategy::no_shard && groups) {
    text += ", shard groups of " + std::to_string(groups->shard_size) + ", " +
            std::to_string(groups->replicas) + " replica(s)";
  }
  if (sharding.hpz_partition_size > 1) {
    text += ", secondary weights over " + std::to_string(sharding.hpz_partition_size);
  }
  if (sharding.reshard_size > 1) {
    text += ", resharded after forward over " + std::to_string(sharding.reshard_size);
  }
  std::string quantised;
  for (const settings::SettingRow& row : settings::settings_table()) {
    constexpr std::string_view kPrefix = "quantized_";
    if (row.key.starts_with(kPrefix) && row.engine.setting(sharding) == "true") {
      quantised += (quantised.empty() ? "" : " and ") + std::string(row.key.substr(kPrefix.size()));
    }
  }
  if (!quantised.empty()) {
    text += ", " + quantised + " quantised between machines" +
            (plan.layout.num_machines == 1 ? " (no effect on one machine)" : "");
  }
  return text;
}

Lines gpus_text(const LaunchPlan& plan) {
  Lines lines;
  for (const Gpu& gpu : plan.gpus.devices) {
    std::string line = std::to_string(lines.size());
    for (const std::string& word : {gpu.name, gpu.uuid, gpu.pci_id}) {
      line += word.empty() ? "" : "  " + word;
    }
    lines.push_back(line + "  NUMA node " +
                    (gpu.numa_node < 0 ? "unknown" : std::to_string(gpu.numa_node)));
  }
  if (!plan.gpus.driver_version.empty()) {
    lines.push_back("driver " + plan.gpus.driver_version);
  }
  return lines;
}

/// Returns one line per worker that has a GPU or is bound to CPUs.
Lines workers_text(const LaunchPlan& plan) {
  Lines lines;
  for (const Placement& worker : plan.binding.workers) {
    if (worker.gpu < 0 && plan.binding.policy == NumaBinding::none) {
      continue;
    }
    std::string line = "local rank " + std::to_string(first_local_rank(plan.layout) +
                                                      (&worker - plan.binding.workers.data()));
    line += worker.gpu < 0 ? "" : " on GPU " + std::to_string(worker.gpu);
    line += worker.cpus.empty() ? ", not bound" : ", CPUs " + number_list(worker.cpus);
    line += worker.numa_node < 0 ? "" : " of NUMA node " + std::to_string(worker.numa_node);
    lines.push_back(line);
  }
  return lines;
}

Lines rendezvous_text(const LaunchPlan& plan) {
  const RendezvousPlan& rendezvous = plan.rendezvous;
  if (rendezvous.backend == Backend::none) {
    return {"none"};
  }
  std::string place = rendezvous.address;
  const bool has_ports =
      place.find_first_of(",/") != std::string::npos;  // several daemons, or etcd
  if (rendezvous.port == 0) {
    place += ", a free port";
  } else if (!has_ports) {
    place += ":" + std::to_string(rendezvous.port);
    const bool may_move = !rendezvous.port_was_given && plan.layout.num_machines == 1;
    place += may_move ? ", or a free port if it is in use" : "";
  }
  Lines lines = {std::string(settings::word_of(rendezvous.backend).name) + " at " + place};
  lines.push_back("run id " + rendezvous.run_id);
  if (plan.layout.num_machines > 1) {
    lines.push_back("waits " + seconds_text(rendezvous.join_timeout) + " for " +
                    std::to_string(rendezvous.min_machines) + " machine(s)" +
                    (rendezvous.min_machines < plan.layout.num_machines
                         ? ", then " + seconds_text(rendezvous.last_call_timeout) + " for more"
                         : ""));
    lines.push_back(fmt::format("a machine leaves the job after {} without heartbeats",
                                seconds_text(rendezvous.heartbeat_timeout)));
    if (rendezvous.is_host) {
      lines.push_back(*rendezvous.is_host ? "this machine hosts the store"
                                          : "another machine hosts the store");
    }
  }
  return lines;
}

std::string name_of(OutputPlan::Streams streams) {
  constexpr std::array kNames = {"nothing", "stdout", "stderr", "stdout and stderr"};
  return kNames[streams % kNames.size()];
}

/// Returns the destinations of output, one line per worker if they differ from the default.
Lines output_of(const LaunchPlan& plan) {
  const OutputPlan& output = plan.output;
  Lines lines;
  for (int index = 0; index < plan.layout.local_world_size; ++index) {
    const int local_rank = first_local_rank(plan.layout) + index;
    const OutputPlan::Streams file = output.files_of(local_rank);
    const OutputPlan::Streams console = output.console_of(local_rank);
    if (file != 0 || console != OutputPlan::kBoth) {
      lines.push_back("local rank " + std::to_string(local_rank) + ": " + name_of(console) +
                      " to the console, " + name_of(file) + " to files");
    }
  }
  if (lines.empty()) {
    lines.emplace_back("to the console");
  }
  if (output.keeps_directory) {
    lines.push_back("log files in a folder like " + output.directory);
  }
  if (plan.appended_file) {
    lines.push_back("variables for other machines appended to " + plan.appended_file->path);
  }
  return lines;
}

std::string restarts_of(const LaunchPlan& plan) {
  return (plan.supervision.max_restarts == 0
              ? "none"
              : "up to " + std::to_string(plan.supervision.max_restarts)) +
         (plan.supervision.rejoins ? ", of the failed worker alone; the others rejoin" : "") +
         (plan.supervision.elastic_replicas ? ", also with more or fewer machines" : "") + "; " +
         std::to_string(plan.supervision.shutdown_timeout.count()) + " s from SIGTERM to SIGKILL";
}

std::string command_of(const LaunchPlan& plan) {
  if (plan.command.empty()) {
    return "no program was given";
  }
  return report::shell_line(plan.command);
}

std::string shown(const commands::ChangedVariable::Value& value) {
  return value ? printable(shell_quoted(*value)) : "(known when the job starts)";
}

std::string environment_text(const LaunchPlan& plan, const settings::Environment& parent) {
  const commands::EnvironmentChanges changes = commands::environment_changes(plan, parent);
  std::string text = "environment of local rank 0: variables that acclaunch adds or changes\n";
  for (const commands::ChangedVariable& variable : changes.set) {
    text += "  " + printable(variable.name) + "=" + shown(variable.values.front());
    if (variable.values.size() > 1) {
      text += "    by local rank:";
      for (const commands::ChangedVariable::Value& value : variable.values) {
        text += " " + shown(value);
      }
    }
    text += "\n";
  }
  for (const std::string& name : changes.removed) {
    text += "  without " + printable(name) + "\n";
  }
  return text;
}

Lines job_of(const LaunchPlan& plan) {
  const JobManager& manager = plan.manager;
  if (manager.name.empty()) {
    return {};
  }
  return {manager.job + ", detected by " + manager.detected_by};
}

/// Describes how the launchers of other machines are started. Each of them makes the plan of its
/// own machine.
std::string explain_start(const LaunchPlan& plan) {
  const RemoteLaunchPlan& start = *plan.start;
  Lines machines = {std::to_string(start.machines.size()) + " by " +
                    std::string(settings::word_of(start.means).name)};
  for (const RemoteMachine& machine : start.machines) {
    if (!machine.name.empty()) {
      machines.push_back(std::to_string(machines.size() - 1) + "  " + machine.name);
    }
  }
  std::string text = labelled("machines", machines);
  text += labelled("directory", {start.working_directory});
  text += labelled("on each", {"acclaunch " + report::shell_line(start.arguments)});
  Lines variables;
  for (const auto& [name, value] : start.environment) {
    variables.push_back(name + "=" + shell_quoted(value));
  }
  return text + labelled("variables", variables);
}

}  // namespace

std::string explain(const LaunchPlan& plan, const settings::Environment& parent) {
  std::string text = settings_text(plan) + "\n";
  text += labelled("job", job_of(plan));
  if (plan.start) {
    return text + explain_start(plan) + labelled("notice", plan.notices);
  }
  text += labelled("mode", {std::string(settings::word_of(plan.mode).name) + " on " +
                            std::string(settings::to_string(plan.device))});
  text += labelled("world", {world_of(plan)});
  text += labelled("sharding", {sharding_text(plan)});
  text += labelled("gpus", gpus_text(plan));
  text += labelled("binding", {std::string(settings::word_of(plan.binding.policy).name)});
  text += labelled("workers", workers_text(plan));
  text += labelled("rendezvous", rendezvous_text(plan));
  text += labelled("restarts", {restarts_of(plan)});
  text += labelled("output", output_of(plan));
  text += labelled("directory", {plan.working_directory});
  text += labelled("command", {command_of(plan)});
  text += "\n" + environment_text(plan, parent);
  text += plan.notices.empty() ? "" : "\n";
  for (const std::string& line : plan.notices) {
    text += labelled("notice", {line});
  }
  return text;
}

}  // namespace acc::launcher
