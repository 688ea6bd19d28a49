#include "acc/launcher/explain.hpp"

#include "acc/launcher/face.hpp"
#include "commands/commands.hpp"
#include "host/topology.hpp"
#include "plan/machines.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace acc::launcher {
namespace {

using Line = std::array<std::string, 3>;

std::string aligned(const std::vector<Line>& lines) {
  constexpr std::size_t kWidest = 44;  // a longer value pushes its source out rather than all
  std::array<std::size_t, 2> widths{};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], std::min(line[i].size(), kWidest));
    }
  }
  std::string text;
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += line[i];
      text += std::string(line[i].size() < widths[i] ? widths[i] - line[i].size() : 0, ' ') + "  ";
    }
    text += line[2] + "\n";
  }
  return text;
}

std::string origin_of(Mode mode) {
  return mode == Mode::fsdp ? "fsdp" : mode == Mode::deepspeed ? "deepspeed" : "none";
}

std::string name_of(Mode mode) {
  switch (mode) {
    case Mode::plain: return "plain";
    case Mode::multi_gpu: return "multi-GPU";
    case Mode::fsdp: return "FSDP";
    case Mode::deepspeed: return "DeepSpeed";
  }
  return {};
}

std::vector<Line> setting_lines(const LaunchPlan& plan) {
  std::vector<Line> lines = {{"setting", "value", "source"}};
  for (const plugins::SettingRow& row : plan.settings.table()) {
    if (!plugins::applies(row.section, origin_of(plan.mode))) {
      continue;
    }
    const std::string& text = plan.settings.text(row.key);
    lines.push_back({std::string(row.key), text.empty() ? "-" : text,
                     plugins::describe(plan.settings.source(row.key))});
  }
  return lines;
}

std::string groups_of(const LaunchPlan& plan) {
  const plugins::ShardingSettings& sharding = plan.sharding;
  const bool hybrid = sharding.strategy == plugins::Strategy::hybrid_shard ||
                      sharding.strategy == plugins::Strategy::hybrid_shard_zero2;
  const int local = sharding.shard_size > 0 ? sharding.shard_size : plan.local_world_size;
  const int shard = hybrid ? local : plan.num_processes;
  std::string text = std::string(plugins::to_string(sharding.strategy));
  if (sharding.strategy != plugins::Strategy::no_shard) {
    text += ", shard groups of " + std::to_string(shard) + ", " +
            std::to_string(plan.num_processes / shard) + " replica(s)";
  }
  if (sharding.hpz_partition_size > 1) {
    text += ", secondary weights over " + std::to_string(sharding.hpz_partition_size);
  }
  return text;
}

std::string ranks_of(const LaunchPlan& plan) {
  const int first = plan.machine_rank * plan.local_world_size;
  return std::to_string(plan.num_processes) + " processes on " + std::to_string(plan.num_machines) +
         " machine(s); ranks " + std::to_string(first) + ".." +
         std::to_string(first + plan.local_world_size - 1) + " on this one, machine " +
         std::to_string(plan.machine_rank);
}

std::string command_of(const LaunchPlan& plan) {
  std::string text;
  for (const std::string& word : plan.command) {
    text += (text.empty() ? "" : " ") + shell_quoted(word);
  }
  return text;
}

/// "", or lines that begin with `label` or as many blanks.
std::string labelled(const std::string& label, const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& word = i == 0 ? label : "";
    text += word + std::string(10 - word.size(), ' ') + lines[i] + "\n";
  }
  return text;
}

std::vector<std::string> gpus_of(const LaunchPlan& plan) {
  std::vector<std::string> lines;
  for (const Gpu& gpu : plan.gpus.devices) {
    const std::string node = gpu.numa_node < 0 ? "unknown" : std::to_string(gpu.numa_node);
    lines.push_back(std::to_string(lines.size()) + "  " + gpu.name + "  " + gpu.uuid + "  " +
                    gpu.pci_id + "  NUMA node " + node);
  }
  if (!lines.empty()) {
    lines.push_back("driver " + plan.gpus.driver_version);
  }
  return lines;
}

std::vector<std::string> workers_of(const LaunchPlan& plan) {
  const bool binds = plan.numa_binding != NumaBinding::none;
  std::vector<std::string> lines;
  for (const Placement& worker : plan.placements) {
    if (worker.gpu < 0 && !binds) {
      continue;
    }
    std::string line = "local rank " + std::to_string(&worker - plan.placements.data());
    line += worker.gpu < 0 ? "" : " on GPU " + std::to_string(worker.gpu);
    line += worker.cpus.empty() ? ", not bound" : ", CPUs " + cpu_list(worker.cpus);
    line += worker.numa_node < 0 ? "" : " of NUMA node " + std::to_string(worker.numa_node);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

std::string explain(const LaunchPlan& plan) {
  std::string port = std::to_string(plan.rendezvous.port);
  if (plan.rendezvous.port == 0) {
    port = "a free port";
  } else if (!plan.rendezvous.port_was_given && plan.num_machines == 1) {
    port += ", or a free port if it is in use";
  }
  std::string text = aligned(setting_lines(plan));
  text += "\nmode      " + name_of(plan.mode) + " on " +
          std::string(plugins::to_string(plan.device)) + "\nworld     " + ranks_of(plan) +
          "\nsharding  " + groups_of(plan) + "\n" + labelled("gpus", gpus_of(plan)) +
          labelled("workers", workers_of(plan)) + "store     " + plan.rendezvous.address + ":" +
          port + "\ncommand   " + command_of(plan) + "\n";
  for (const std::string& line : plan.notices) {
    text += "notice    " + line + "\n";
  }
  return text;
}

int explain_command(std::span<const std::string> arguments) {
  const Face* face = arguments.empty() ? nullptr : find_face(arguments.front());
  if (face != nullptr) {
    arguments = arguments.subspan(1);
  } else {
    face = &accelerate_face();
  }
  const Flags flags = parse_flags(*face, arguments);
  const auto environment = plugins::current_environment();
  const LaunchPlan plan = face->plan(flags, environment, detect_host_facts(environment));
  std::fputs(explain(plan).c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher
