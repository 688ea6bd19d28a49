// SPDX-License-Identifier: Apache-2.0
// Planner of `acclaunch deepspeed`, after DeepSpeed 0.19.8 (launcher/runner.py and launch.py). On
// the machine where the user typed the command it selects hosts and starts acclaunch on each of
// them; there, and with --no_ssh, it plans the workers of one machine.
#include "acc/documents/deepspeed_json.hpp"
#include "acc/launcher/front_end.hpp"
#include "acc/settings/faults.hpp"
#include "deepspeed_cli/choose_hosts.hpp"
#include "host/own_variables.hpp"
#include "plan/draft.hpp"
#include "plan/inherited_settings.hpp"
#include "plan/program_command.hpp"
#include "plan/remote_launch.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <set>

namespace acc::launcher::deepspeed_cli {
namespace {

namespace fs = std::filesystem;
using settings::Device;
using settings::Faults;

RendezvousPlan read_rendezvous(const plan::Draft& draft, const JobHosts& job,
                               const cluster::JobEnvironment* remote_launcher) {
  const auto num_machines = static_cast<int>(job.hosts.size());
  RendezvousPlan rendezvous = {.min_machines = num_machines};
  rendezvous.address = draft.settings.has("master_addr"_key)
                           ? draft.settings.text("master_addr"_key)
                       : remote_launcher != nullptr ? remote_launcher->address->value
                       : num_machines > 1           ? job.hosts.front().name
                                                    : "127.0.0.1";
  if (draft.settings.has("master_port"_key)) {
    rendezvous.port = static_cast<std::uint16_t>(draft.settings.integer("master_port"_key));
    rendezvous.port_was_given = true;
  } else if (remote_launcher != nullptr) {
    rendezvous.port = remote_launcher->port->value;
  }
  if (remote_launcher != nullptr) {
    rendezvous.run_id = remote_launcher->run_id.value;
  }
  plan::check_port_is_known(rendezvous.port, num_machines, draft.given("master_port"_key));
  return rendezvous;
}

/// Plans the start of the launchers. Each launcher plans the workers of its machine.
RemoteLaunchPlan plan_start(plan::Draft& draft, const std::vector<cluster::Host>& hosts,
                            const RendezvousPlan& rendezvous) {
  std::vector<int> workers;
  workers.reserve(hosts.size());
  for (const cluster::Host& host : hosts) {
    workers.push_back(static_cast<int>(host.slots.size()));
  }
  return plan::start_on_hosts(
      draft, {hosts, workers, true}, rendezvous.address,
      rendezvous.port_was_given ? std::optional(rendezvous.port) : std::nullopt);
}

/// Reads --enable_each_rank_log, which writes all output to files, or the common output flags.
OutputPlan read_rank_logs(plan::Draft& draft, const std::string& run_id, const RankLayout& layout) {
  const Sourced<std::string> folder = draft.given("enable_each_rank_log"_key);
  if (folder.value == "None" || folder.value.empty()) {
    return plan::read_output(draft, run_id, layout);
  }
  OutputPlan output = plan::read_output(draft, run_id, layout, folder);
  draft.notice("the workers' output is in " + output.directory);
  return output;
}

/// Command line of the workers.
struct Command {
  std::vector<std::string> words{};
  bool has_local_rank = false;  ///< one of the words is --local_rank=${local_rank}
  PreloadPlan preload{};
};

/// Returns the command line. DeepSpeed adds --local_rank to every program. A binary that runs
/// without Python because it is a binary is a program for acclaunch, which does not know the
/// argument.
Command choose_command(const plan::Draft& draft) {
  plan::ProgramKind kind = plan::read_program_kind(draft);
  kind.only_binaries_without_python = true;
  std::vector<std::string> command =
      plan::program_command(draft.flags, kind, draft.environment, draft.facts);
  PreloadPlan preload = plan::read_preload(draft, kind, command);
  const bool binary = command.size() == draft.flags.arguments.size() + 1 && !kind.no_python;
  const bool adds = !draft.settings.boolean("no_local_rank"_key) && !binary && !command.empty();
  if (adds) {
    const auto arguments = static_cast<std::ptrdiff_t>(draft.flags.arguments.size());
    command.insert(command.end() - arguments, "--local_rank=${local_rank}");
  }
  return {std::move(command), adds, std::move(preload)};
}

/// Reads NAME=VALUE lines of a .deepspeed_env file. In DeepSpeed a shell on each machine reads the
/// values; of its rules only those for quotes around a whole value apply here.
settings::Environment read_environment_file(plan::Draft& draft, const fs::path& path) {
  std::ifstream lines(path);
  std::string line;
  Faults faults;
  int count = 0;
  std::string literal;
  settings::Environment environment;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const auto equals = line.find('=');
    const std::string_view name = trimmed(std::string_view(line).substr(0, equals));
    if (equals == std::string::npos || name.empty() ||
        name.find_first_of(" \t") != std::string_view::npos) {
      faults.add(path.string() + ":" + std::to_string(number) + ": expected NAME=VALUE, got \"" +
                 line + "\"");
      continue;
    }
    std::string_view value = trimmed(std::string_view(line).substr(equals + 1));
    if (value.size() > 1 && value.starts_with('"') && value.ends_with('"')) {
      value = value.substr(1, value.size() - 2);
    }
    if (value.find_first_of("$`\"\\") != std::string_view::npos) {
      literal.append(literal.empty() ? "" : ", ").append(name);
    }
    environment[std::string(name)] = value;
    ++count;
  }
  faults.raise();
  if (!literal.empty()) {
    draft.notice(path.string() + ": $, `, \" and \\ have no special meaning in the values of " +
                 literal);
  }
  draft.notice("the workers get " + std::to_string(count) +
               (count == 1 ? " variable from " : " variables from ") + path.string());
  return environment;
}

/// Reads the environment files of the home and the working directory; the latter overrides.
settings::Environment read_environment_files(plan::Draft& draft) {
  const fs::path name = host::value_of(
      draft.environment, host::variables.deepspeed_environment_file, ".deepspeed_env");
  const fs::path home = host::value_of(draft.environment, host::variables.home);
  std::set<fs::path> read;
  settings::Environment all;
  for (const fs::path& folder : {home, draft.facts.working_directory}) {
    const fs::path path = folder / name;
    std::error_code error;
    if (!folder.empty() && fs::is_regular_file(path, error) && read.insert(path).second) {
      settings::Environment later =
          draft.result_of([&] { return read_environment_file(draft, path); });
      later.merge(all);
      all = std::move(later);
    }
  }
  return all;
}

/// Variables of an outer torchrun, which would contradict those of DeepSpeed.
std::set<std::string> torchrun_variables() {
  constexpr std::string_view kNames =
      "LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
      "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
      "TORCHELASTIC_ERROR_FILE TORCHELASTIC_SIGNALS_TO_HANDLE";
  const auto names = split(kNames, ' ');
  return {names.begin(), names.end()};
}

/// Reads --deepspeed_config, the JSON file of a C++ program. Its settings replace the inherited
/// ones of `workers`, which get them as ACC_* variables.
std::optional<settings::Settings> read_config(plan::Draft& draft, int world_size,
                                              plan::InheritedSettings& workers) {
  if (!draft.settings.has("deepspeed_config"_key)) {
    return std::nullopt;
  }
  const fs::path path = draft.facts.working_directory / draft.settings.text("deepspeed_config"_key);
  const documents::Document document = documents::load_document(path);
  settings::Settings settings;
  const documents::DeepSpeedFile file =
      documents::apply_deepspeed_json(document, world_size, settings);
  draft.notice_all(file.notices);
  workers.mode = Mode::deepspeed;
  workers.sharding = settings::sharding_settings(settings, "deepspeed", world_size);
  workers.variables.removed.merge(plan::names_of_settings());
  for (const auto& [name, value] :
       settings::settings_to_environment(settings, "deepspeed", workers.device)) {
    workers.variables.set[name] = value;
  }
  return settings;
}

/// Returns the facts of this machine with only the CPUs of --bind_core_list.
HostFacts facts_for_binding(const plan::Draft& draft) {
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

/// Binds the workers to cores and, on the GPU, to the GPUs of their slots. Sets OMP_NUM_THREADS of
/// bound workers.
Binding bind_to_slots(plan::Draft& draft, const std::vector<int>& slots,
                      plan::InheritedSettings& workers) {
  const bool binds = draft.settings.boolean("bind_cores_to_rank"_key);
  const HostFacts facts = facts_for_binding(draft);
  Binding binding = plan::bind_workers(draft, binds ? NumaBinding::affinity : NumaBinding::none,
                                       static_cast<int>(slots.size()), {}, facts);
  const auto gpus = static_cast<int>(facts.gpu.devices.size());
  const bool on_gpus = workers.device == Device::cuda && gpus > 0;
  for (std::size_t i = 0; on_gpus && i < binding.workers.size(); ++i) {
    binding.workers[i].gpu = slots[i] % gpus;  // more slots than GPUs: shared
  }
  if (binds) {
    workers.variables.set["OMP_NUM_THREADS"] =
        std::to_string(cores_per_worker(binding.workers, facts));
  }
  return binding;
}

/// Adds the notice that the workers run on the CPU.
void notice_cpu(plan::Draft& draft, int local_world_size) {
  draft.notice("no GPU " +
               std::string(draft.facts.gpu.devices.empty() ? "on this machine" : "is visible") +
               ": " + std::to_string(local_world_size) +
               (local_world_size == 1 ? " worker runs" : " workers run") + " on the CPU");
}

// FrontEnd::plan of the deepspeed front end.
LaunchPlan plan_deepspeed(const Flags& flags, const settings::Environment& environment,
                          const HostFacts& facts) {
  plan::Draft draft(flags, environment, facts, deepspeed_front_end().table);
  plan::read_flags(draft);
  draft.faults.collect([&] { check_contradictions(draft.settings); });
  draft.faults.raise();

  // A job manager other than acclaunch gives its name only: DeepSpeed's flags alone determine hosts
  // and ranks.
  const auto place = cluster::find_job_environment(environment, facts);
  const JobManager manager = place ? place->manager : JobManager{};
  const cluster::JobEnvironment* remote_launcher = manager.name == "acclaunch" ? &*place : nullptr;
  const JobHosts job = choose_hosts(draft, remote_launcher);
  const RankLayout layout = find_this_machine(draft, job, remote_launcher);
  if (starts_machines(draft, job, remote_launcher)) {
    RendezvousPlan rendezvous = read_rendezvous(draft, job, remote_launcher);
    SupervisionPlan supervision = plan::read_supervision(draft, false);
    RemoteLaunchPlan start = plan_start(draft, job.hosts, rendezvous);
    return plan::finished(std::move(draft), {.identity = Identity::deepspeed,
                                             .layout = layout,
                                             .rendezvous = std::move(rendezvous),
                                             .supervision = std::move(supervision),
                                             .manager = manager,
                                             .start = std::move(start)});
  }

  const cluster::Host& this_host = job.hosts[static_cast<std::size_t>(layout.machine_rank)];
  check_slots(draft, job, this_host);
  RendezvousPlan rendezvous =
      draft.result_of([&] { return read_rendezvous(draft, job, remote_launcher); });
  SupervisionPlan supervision =
      draft.result_of([&] { return plan::read_supervision(draft, false); });
  OutputPlan output =
      draft.result_of([&] { return read_rank_logs(draft, rendezvous.run_id, layout); });
  WorkerVariables variables = {.set = read_environment_files(draft),
                               .removed = torchrun_variables()};
  const bool on_gpus = uses_gpus(draft, job.file_names_hosts);
  plan::InheritedSettings workers =
      plan::inherit_settings(draft, Identity::deepspeed, layout, std::move(variables), on_gpus);
  if (!variable_chooses(draft, job.file_names_hosts)) {
    workers.variables.set["CUDA_VISIBLE_DEVICES"] = joined(this_host.slots);
  }
  if (!on_gpus) {
    notice_cpu(draft, layout.local_world_size);
  }
  std::optional<settings::Settings> file_settings =
      draft.result_of([&] { return read_config(draft, world_size_of(job.hosts), workers); });
  Binding binding = draft.result_of([&] { return bind_to_slots(draft, this_host.slots, workers); });
  Command command = draft.result_of([&] { return choose_command(draft); });
  draft.faults.collect([&] { plan::load_package(draft, workers.variables); });
  draft.faults.raise();
  return plan::finished(std::move(draft), {.command = std::move(command.words),
                                           .replaces_local_rank = command.has_local_rank,
                                           .preload = std::move(command.preload),
                                           .mode = workers.mode,
                                           .identity = Identity::deepspeed,
                                           .device = workers.device,
                                           .sharding = workers.sharding,
                                           .binding = std::move(binding),
                                           .layout = layout,
                                           .rendezvous = std::move(rendezvous),
                                           .supervision = std::move(supervision),
                                           .output = std::move(output),
                                           .manager = manager,
                                           .is_controlled = remote_launcher != nullptr &&
                                                            host::is_controlled(environment),
                                           .variables = std::move(workers.variables),
                                           .file_settings = std::move(file_settings)});
}

}  // namespace

}  // namespace acc::launcher::deepspeed_cli

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch deepspeed starts the workers of a training program with the deepspeed launcher's "
    "flags.\n\n"
    "  acclaunch deepspeed [flags] PROGRAM [arguments of the program]\n\n"
    "PROGRAM runs under Python unless it is a binary or --no_python is given. It gets the\n"
    "argument --local_rank=N unless it is a binary. The machines of the hostfile are started by\n"
    "ssh; with --no_ssh, run the command on each machine. Variables in ~/.deepspeed_env and\n"
    "./.deepspeed_env are passed to the workers (DS_ENV_FILE sets another file name).\n";

constexpr std::string_view kNoElastic =
    "for elastic training use acclaunch torchrun --nnodes MIN:MAX --rdzv-backend c10d";

constexpr std::array kRefused = {
    settings::RefusedFlag{"deepspeed", "this is a flag of the program; put it after PROGRAM"},
    settings::RefusedFlag{
        "venv_script",
        "activate the environment before the start: PATH and VIRTUAL_ENV are passed to the "
        "machines"},
    settings::RefusedFlag{"elastic_training", kNoElastic},
    settings::RefusedFlag{"min_elastic_nodes", kNoElastic},
    settings::RefusedFlag{"max_elastic_nodes", kNoElastic},
    settings::RefusedFlag{"autotuning", "DeepSpeed's autotuner is not supported"},
    settings::RefusedFlag{
        "save_pid",
        "not supported; send signals to acclaunch itself, whose pid the shell has in $!"},
};

}  // namespace

const FrontEnd& deepspeed_front_end() noexcept {
  static const auto kTable = plan::with_common_rows(flag_rows::kDeepSpeed);
  static const FrontEnd kFrontEnd{{.table = kTable, .refused = kRefused, .abbreviates = true},
                                  "deepspeed",
                                  kUsage,
                                  deepspeed_cli::plan_deepspeed};
  return kFrontEnd;
}

}  // namespace acc::launcher
