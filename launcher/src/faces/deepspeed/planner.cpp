#include "faces/deepspeed/planner.hpp"

#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/faults.hpp"
#include "faces/deepspeed/table.hpp"
#include "plan/inherited_settings.hpp"
#include "plan/program_command.hpp"

#include <algorithm>
#include <fstream>
#include <set>

namespace acc::launcher {

namespace fs = std::filesystem;
using plugins::Device;
using plugins::Faults;
using plugins::Source;

DeepSpeedPlanner::DeepSpeedPlanner(const Flags& flags, const plugins::Environment& environment,
                                   const HostFacts& facts)
    : flags_(flags), environment_(environment), facts_(facts), settings_(deepspeed_table()) {}

LaunchPlan DeepSpeedPlanner::plan() {
  plan_.identity = Identity::deepspeed;
  read_values();
  choose_hosts();
  find_this_machine();
  check_slots();
  Faults faults;
  faults.collect([&] { read_rendezvous(); });
  faults.collect([&] { read_output(); });
  faults.collect([&] { read_environment_files(); });
  choose_device();
  faults.collect([&] { read_config(); });
  faults.collect([&] { place_workers(); });
  if (faults.any()) {
    faults.collect([&] { choose_command(); });
  }
  faults.raise();
  choose_command();  // alone, it tells the shell by the exit status
  const std::string level = settings_.choice("log_level");
  if (settings_.boolean("quiet") || level == "error" || level == "critical") {
    plan_.notices.clear();
  }
  plan_.settings = std::move(settings_);
  return std::move(plan_);
}

Given DeepSpeedPlanner::given(const std::string& key) const {
  const std::string& where = settings_.source(key).where;
  return {where.empty() ? "--" + key : where, settings_.text(key)};
}

bool DeepSpeedPlanner::shares_gpus() const {
  return plugins::parse_boolean(plugins::variable(environment_, "ACC_SHARE_GPUS", "0"))
      .value_or(false);
}

void DeepSpeedPlanner::read_values() {
  Faults faults = flags_.faults;
  for (const Flags::Value& value : flags_.values) {
    faults.collect([&] {
      settings_.set(value.key, value.text, {Source::Kind::flag, value.written});
    });
  }
  faults.collect([&] { check_contradictions(); });
  faults.raise();
}

void DeepSpeedPlanner::read_rendezvous() {
  RendezvousPlan& rendezvous = plan_.rendezvous;
  rendezvous.min_machines = plan_.num_machines;
  rendezvous.address = settings_.has("master_addr") ? settings_.text("master_addr")
                       : plan_.num_machines > 1     ? hosts_.front().name
                                                    : "127.0.0.1";
  if (settings_.has("master_port")) {
    rendezvous.port = static_cast<std::uint16_t>(settings_.integer("master_port"));
    rendezvous.port_was_given = true;
  }
  if (plan_.num_machines > 1 && rendezvous.port == 0) {
    throw Error(
        Errc::config,
        "--master_port 0 lets machine 0 choose, and the others cannot know it; name a port");
  }
}

void DeepSpeedPlanner::read_output() {
  Given folder = given("enable_each_rank_log");
  const bool logs = folder.text != "None" && !folder.text.empty();
  if (!logs) {
    folder.text.clear();
  }
  plan_.output =
      plan_output({{"", logs ? "3" : ""}, {}, {}, folder}, plan_.rendezvous.run_id,
                  plan_.local_world_size, facts_.working_directory, facts_.scratch_directory);
  if (logs) {
    notice("the workers' output is in " + plan_.output.directory);
  }
}

void DeepSpeedPlanner::choose_command() {
  const bool no_python = settings_.boolean("no_python");
  plan_.command = program_command(flags_,
                                  {.module = settings_.boolean("module"),
                                   .no_python = no_python,
                                   .only_binaries_without_python = true},
                                  environment_, facts_);
  plan_.working_directory = facts_.working_directory.string();
  // A binary that is started for its kind is ours; it would not know the argument.
  const bool binary = plan_.command.size() == flags_.arguments.size() + 1 && !no_python;
  if (!settings_.boolean("no_local_rank") && !binary && !plan_.command.empty()) {
    const auto arguments = static_cast<std::ptrdiff_t>(flags_.arguments.size());
    plan_.command.insert(plan_.command.end() - arguments, "--local_rank=${local_rank}");
    plan_.replaces_local_rank = true;
  }
}

void DeepSpeedPlanner::read_environment_files() {
  const fs::path name = plugins::variable(environment_, "DS_ENV_FILE", ".deepspeed_env");
  const fs::path home = plugins::variable(environment_, "HOME");
  Faults faults;
  std::set<fs::path> read;
  for (const fs::path& folder : {home, facts_.working_directory}) {
    const fs::path path = folder / name;
    std::error_code error;
    if (!folder.empty() && fs::is_regular_file(path, error) && read.insert(path).second) {
      faults.collect([&] { read_environment_file(path); });
    }
  }
  faults.raise();
}

void DeepSpeedPlanner::read_environment_file(const fs::path& path) {
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
    plan_.environment[line.substr(0, equals)] = line.substr(equals + 1);
    ++variables;
  }
  faults.raise();
  notice("the workers get " + std::to_string(variables) +
         (variables == 1 ? " variable of " : " variables of ") + path.string());
}

void DeepSpeedPlanner::choose_device() {
  for (const std::string name :
       {"LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
        "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}) {
    plan_.removed_variables.insert(name);  // an outer torchrun's; they would contradict ours
  }
  inherit_settings(plan_, environment_, uses_gpus());
  plan_.gpus = facts_.gpu;
  if (!variable_chooses()) {
    show_gpus();
  }
  if (!uses_gpus()) {
    notice("no GPU " + std::string(facts_.gpu.devices.empty() ? "on this machine" : "is visible") +
           ": " + std::to_string(plan_.local_world_size) +
           (plan_.local_world_size == 1 ? " worker runs" : " workers run") + " on the CPU");
  }
}

void DeepSpeedPlanner::show_gpus() {
  std::string list;
  for (const int slot : this_host().slots) {
    list += (list.empty() ? "" : ",") + std::to_string(slot);
    plan_.gpu_ids.push_back(std::to_string(slot));
  }
  plan_.environment["CUDA_VISIBLE_DEVICES"] = list;
}

void DeepSpeedPlanner::read_config() {
  if (!settings_.has("deepspeed_config")) {
    return;
  }
  const fs::path path = facts_.working_directory / settings_.text("deepspeed_config");
  const plugins::Document document = plugins::load_document(path);
  plugins::Settings settings;
  const plugins::DeepSpeedFile file =
      plugins::apply_deepspeed_json(document, world_size_, settings);
  plan_.notices.insert(plan_.notices.end(), file.notices.begin(), file.notices.end());
  plan_.mode = Mode::deepspeed;
  plan_.sharding =
      plugins::sharding_settings(settings, "deepspeed", world_size_, plan_.local_world_size);
  for (const plugins::SettingRow& row : plugins::settings_table()) {
    plan_.removed_variables.insert(plugins::own_variable(row));  // an outer acclaunch's
  }
  for (const auto& [name, value] :
       plugins::settings_to_environment(settings, "deepspeed", plan_.device)) {
    plan_.environment[name] = value;
  }
  plan_.file_settings = std::move(settings);
}

void DeepSpeedPlanner::place_workers() {
  const bool binds = settings_.boolean("bind_cores_to_rank");
  plan_.numa_binding = binds ? NumaBinding::affinity : NumaBinding::none;
  const HostFacts facts = facts_for_binding();
  Placements placements =
      acc::launcher::place_workers(plan_.local_world_size, {}, plan_.numa_binding, facts);
  plan_.placements = std::move(placements.workers);
  plan_.notices.insert(plan_.notices.end(), placements.notices.begin(), placements.notices.end());
  const auto gpus = static_cast<int>(facts_.gpu.devices.size());
  const bool on_gpus = plan_.device == Device::cuda && gpus > 0;
  for (std::size_t i = 0; on_gpus && i < plan_.placements.size(); ++i) {
    plan_.placements[i].gpu = this_host().slots[i] % gpus;
  }
  if (binds) {
    plan_.environment["OMP_NUM_THREADS"] =
        std::to_string(cores_per_worker(plan_.placements, facts));
  }
}

HostFacts DeepSpeedPlanner::facts_for_binding() const {
  HostFacts facts = facts_;
  if (!settings_.has("bind_core_list")) {
    return facts;
  }
  const std::vector<int> chosen = read_ranges(given("bind_core_list"));
  for (const int cpu : chosen) {
    if (std::ranges::find(facts_.cpus, cpu, &Cpu::id) == facts_.cpus.end()) {
      throw Error(Errc::config, given("bind_core_list").where + " names core " +
                                    std::to_string(cpu) + ", which acclaunch may not use");
    }
  }
  std::erase_if(facts.cpus,
                [&](const Cpu& cpu) { return std::ranges::find(chosen, cpu.id) == chosen.end(); });
  return facts;
}

LaunchPlan plan_deepspeed(const Flags& flags, const plugins::Environment& environment,
                          const HostFacts& facts) {
  return DeepSpeedPlanner(flags, environment, facts).plan();
}

}  // namespace acc::launcher
