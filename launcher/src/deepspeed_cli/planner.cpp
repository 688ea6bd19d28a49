// Planner of `acclaunch deepspeed`, after DeepSpeed 0.19.8 (launcher/runner.py and launch.py). On
// the machine where the user typed the command it selects hosts and starts acclaunch on each of
// them; there, and with --no_ssh, it plans the workers of one machine.
#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/faults.hpp"
#include "deepspeed_cli/choose_hosts.hpp"
#include "deepspeed_cli/front_end.hpp"
#include "host/own_variables.hpp"
#include "plan/inherited_settings.hpp"
#include "plan/program_command.hpp"
#include "plan/remote_launch.hpp"

#include <algorithm>
#include <fstream>
#include <set>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;
using plugins::Device;
using plugins::Faults;

void read_values(DeepSpeedDraft& draft) {
  Faults faults = draft.flags.faults;
  read_flags(draft, faults);
  faults.collect([&] { check_contradictions(draft.settings); });
  faults.raise();
}

void read_rendezvous(DeepSpeedDraft& draft) {
  RendezvousPlan& rendezvous = draft.plan.rendezvous;
  rendezvous.min_machines = draft.plan.layout.num_machines;
  rendezvous.address = draft.settings.has("master_addr"_key)
                           ? draft.settings.text("master_addr"_key)
                       : draft.place                        ? draft.place->address->value
                       : draft.plan.layout.num_machines > 1 ? draft.hosts.front().name
                                                            : "127.0.0.1";
  if (draft.settings.has("master_port"_key)) {
    rendezvous.port = static_cast<std::uint16_t>(draft.settings.integer("master_port"_key));
    rendezvous.port_was_given = true;
  } else if (draft.place) {
    rendezvous.port = draft.place->port->value;
  }
  check_port_is_known(rendezvous.port, draft.plan.layout.num_machines,
                      draft.given("master_port"_key));
}

/// Plans only the start of the launchers. Each launcher plans the workers of its machine.
LaunchPlan plan_start(DeepSpeedDraft&& draft) {
  std::vector<int> workers;
  for (const Host& host : draft.hosts) {
    workers.push_back(static_cast<int>(host.slots.size()));
  }
  const RendezvousPlan& rendezvous = draft.plan.rendezvous;
  draft.plan.start =
      start_on_hosts(draft, {draft.hosts, workers, true}, rendezvous.address,
                     rendezvous.port_was_given ? std::optional(rendezvous.port) : std::nullopt);
  return finished(std::move(draft));
}

/// Finds the acclaunch that started this one on its hosts, if any. Other job managers are recorded,
/// but DeepSpeed's flags alone determine hosts and ranks.
void find_starter(DeepSpeedDraft& draft) {
  auto place = find_job_environment(draft.environment, draft.facts);
  if (!place) {
    return;
  }
  draft.plan.manager = place->manager;
  if (place->manager.name == "acclaunch") {
    draft.plan.rendezvous.run_id = place->run_id.value;
    draft.plan.is_controlled = is_controlled(draft.environment);
    draft.place = std::move(place);
  }
}

/// Reads --enable_each_rank_log, which writes all output to files, or the common output flags.
void read_rank_logs(DeepSpeedDraft& draft) {
  const Sourced<std::string> folder = draft.given("enable_each_rank_log"_key);
  const bool logs = folder.value != "None" && !folder.value.empty();
  const Sourced<std::string> shown = draft.given("local_ranks_filter"_key);
  if (logs) {
    read_output(draft, {{"3", ""}, {}, shown, folder});
    draft.notice("the workers' output is in " + draft.plan.output.directory);
  } else {
    read_output(draft, {draft.given("redirects"_key), draft.given("tee"_key), shown,
                        draft.given("log_dir"_key)});
  }
}

void choose_command(DeepSpeedDraft& draft) {
  const bool no_python = draft.settings.boolean("no_python"_key);
  draft.plan.command = program_command(draft.flags,
                                       {.module = draft.settings.boolean("module"_key),
                                        .no_python = no_python,
                                        .only_binaries_without_python = true},
                                       draft.environment, draft.facts);
  draft.plan.working_directory = draft.facts.working_directory.string();
  // DeepSpeed adds --local_rank to every program. A binary that runs without Python because it is a
  // binary is a program for acclaunch, which does not know the argument.
  const bool binary = draft.plan.command.size() == draft.flags.arguments.size() + 1 && !no_python;
  if (!draft.settings.boolean("no_local_rank"_key) && !binary && !draft.plan.command.empty()) {
    const auto arguments = static_cast<std::ptrdiff_t>(draft.flags.arguments.size());
    draft.plan.command.insert(draft.plan.command.end() - arguments, "--local_rank=${local_rank}");
    draft.plan.replaces_local_rank = true;
  }
}

/// Reads NAME=VALUE lines of a .deepspeed_env file into the workers' environment.
void read_environment_file(DeepSpeedDraft& draft, const fs::path& path) {
  std::ifstream lines(path);
  std::string line;
  Faults faults;
  int variables = 0;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const auto equals = line.find('=');
    if (equals == std::string::npos || equals == 0) {
      faults.add(path.string() + ":" + std::to_string(number) + ": expected NAME=VALUE, got \"" +
                 line + "\"");
      continue;
    }
    draft.plan.environment[line.substr(0, equals)] = line.substr(equals + 1);
    ++variables;
  }
  faults.raise();
  draft.notice("the workers get " + std::to_string(variables) +
               (variables == 1 ? " variable from " : " variables from ") + path.string());
}

/// Reads the environment files of the home and the working directory; the latter overrides.
void read_environment_files(DeepSpeedDraft& draft) {
  const fs::path name =
      value_of(draft.environment, variables::deepspeed_environment_file, ".deepspeed_env");
  const fs::path home = value_of(draft.environment, variables::home);
  Faults faults;
  std::set<fs::path> read;
  for (const fs::path& folder : {home, draft.facts.working_directory}) {
    const fs::path path = folder / name;
    std::error_code error;
    if (!folder.empty() && fs::is_regular_file(path, error) && read.insert(path).second) {
      faults.collect([&] { read_environment_file(draft, path); });
    }
  }
  faults.raise();
}

void show_gpus(DeepSpeedDraft& draft) {
  draft.plan.environment["CUDA_VISIBLE_DEVICES"] = joined(draft.this_host().slots);
}

void choose_device(DeepSpeedDraft& draft) {
  for (const std::string name :
       {"LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
        "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}) {
    draft.plan.removed_variables.insert(name);  // an outer torchrun's, would contradict ours
  }
  inherit_settings(draft.plan, draft.environment, uses_gpus(draft));
  if (!variable_chooses(draft)) {
    show_gpus(draft);
  }
  if (!uses_gpus(draft)) {
    draft.notice("no GPU " +
                 std::string(draft.facts.gpu.devices.empty() ? "on this machine" : "is visible") +
                 ": " + std::to_string(draft.plan.layout.local_world_size) +
                 (draft.plan.layout.local_world_size == 1 ? " worker runs" : " workers run") +
                 " on the CPU");
  }
}

/// Reads --deepspeed_config, the JSON file of a C++ program, and passes its settings on as ACC_*
/// variables.
void read_config(DeepSpeedDraft& draft) {
  if (!draft.settings.has("deepspeed_config"_key)) {
    return;
  }
  const fs::path path = draft.facts.working_directory / draft.settings.text("deepspeed_config"_key);
  const plugins::Document document = plugins::load_document(path);
  plugins::Settings settings;
  const plugins::DeepSpeedFile file =
      plugins::apply_deepspeed_json(document, draft.world_size, settings);
  draft.notice_all(file.notices);
  draft.plan.mode = Mode::deepspeed;
  draft.plan.sharding = plugins::sharding_settings(settings, "deepspeed", draft.world_size);
  remove_outer_settings(draft.plan);
  for (const auto& [name, value] :
       plugins::settings_to_environment(settings, "deepspeed", draft.plan.device)) {
    draft.plan.environment[name] = value;
  }
  draft.plan.file_settings = std::move(settings);
}

/// Returns the facts of this machine with only the CPUs of --bind_core_list.
HostFacts facts_for_binding(const DeepSpeedDraft& draft) {
  HostFacts facts = draft.facts;
  if (!draft.settings.has("bind_core_list"_key)) {
    return facts;
  }
  const std::vector<int> chosen = read_ranges(draft.given("bind_core_list"_key));
  for (const int cpu : chosen) {
    if (std::ranges::find(draft.facts.cpus, cpu, &Cpu::id) == draft.facts.cpus.end()) {
      throw Error(Errc::config, draft.given("bind_core_list"_key).where + " names core " +
                                    std::to_string(cpu) + ", which acclaunch may not use");
    }
  }
  std::erase_if(facts.cpus,
                [&](const Cpu& cpu) { return std::ranges::find(chosen, cpu.id) == chosen.end(); });
  return facts;
}

void bind_workers(DeepSpeedDraft& draft) {
  LaunchPlan& plan = draft.plan;
  const bool binds = draft.settings.boolean("bind_cores_to_rank"_key);
  plan.binding.policy = binds ? NumaBinding::affinity : NumaBinding::none;
  const HostFacts facts = facts_for_binding(draft);
  place_on_cores(draft, {}, facts);
  const auto gpus = static_cast<int>(facts.gpu.devices.size());
  const bool on_gpus = plan.device == Device::cuda && gpus > 0;
  for (std::size_t i = 0; on_gpus && i < plan.binding.workers.size(); ++i) {
    plan.binding.workers[i].gpu =
        draft.this_host().slots[i] % gpus;  // more slots than GPUs: shared
  }
  if (binds) {
    plan.environment["OMP_NUM_THREADS"] =
        std::to_string(cores_per_worker(plan.binding.workers, facts));
  }
}

}  // namespace

LaunchPlan plan_deepspeed(const Flags& flags, const plugins::Environment& environment,
                          const HostFacts& facts) {
  DeepSpeedDraft draft(flags, environment, facts, deepspeed_table());
  draft.plan.identity = Identity::deepspeed;
  read_values(draft);
  find_starter(draft);
  choose_hosts(draft);
  find_this_machine(draft);
  Faults faults;
  if (starts_machines(draft)) {
    read_rendezvous(draft);
    return plan_start(std::move(draft));
  }
  check_slots(draft);
  faults.collect([&] { read_rendezvous(draft); });
  faults.collect([&] { read_supervision(draft); });
  faults.collect([&] { read_rank_logs(draft); });
  faults.collect([&] { read_environment_files(draft); });
  choose_device(draft);
  faults.collect([&] { read_config(draft); });
  faults.collect([&] { bind_workers(draft); });
  faults.collect([&] { choose_command(draft); });
  faults.raise();
  if (draft.settings.boolean("quiet"_key)) {
    draft.plan.notices.clear();
  }
  return finished(std::move(draft));
}

}  // namespace acc::launcher
