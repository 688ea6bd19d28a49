#include "faces/torchrun/planner.hpp"

#include "acc/base/error.hpp"
#include "faces/torchrun/table.hpp"
#include "plan/inherited_settings.hpp"
#include "plan/program_command.hpp"

#include <algorithm>
#include <array>

namespace acc::launcher {

using plugins::Faults;
using plugins::SettingRow;
using plugins::Source;

TorchrunPlanner::TorchrunPlanner(const Flags& flags, const plugins::Environment& environment,
                                 const HostFacts& facts)
    : flags_(flags), environment_(environment), facts_(facts), settings_(torchrun_table()) {}

LaunchPlan TorchrunPlanner::plan() {
  read_values();
  Faults faults;
  faults.collect([&] { count_workers(); });
  faults.collect([&] { count_machines(); });
  faults.raise();
  faults.collect([&] { read_rendezvous(); });
  faults.collect([&] { read_conf(); });
  faults.collect([&] { read_output(); });
  faults.collect([&] { read_stop_signals(); });
  faults.collect([&] { check_virtual_local_rank(); });
  if (faults.any()) {
    faults.collect([&] { choose_command(); });
  }
  faults.raise();
  choose_command();  // alone, it tells the shell by the exit status
  choose_device();
  place_on_cores();
  limit_threads();
  plan_.settings = std::move(settings_);
  return std::move(plan_);
}

Given TorchrunPlanner::given(const std::string& key) const {
  const std::string& where = settings_.source(key).where;
  return {where.empty() ? "--" + key : where, settings_.text(key)};
}

void TorchrunPlanner::read_values() {
  Faults faults = flags_.faults;
  read_variables(faults);
  for (const Flags::Value& value : flags_.values) {
    faults.collect([&] {
      settings_.set(value.key, value.text, {Source::Kind::flag, value.written});
    });
  }
  faults.raise();
}

void TorchrunPlanner::read_variables(Faults& faults) {
  for (const SettingRow& row : settings_.table()) {
    const std::string name(row.environment);
    const std::string value = name.empty() ? "" : plugins::variable(environment_, name);
    if (!value.empty()) {
      faults.collect([&] { settings_.set(row.key, value, {Source::Kind::environment, name}); });
    }
  }
  const std::string seconds = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (const std::string value = plugins::variable(environment_, seconds);
      !value.empty() && !settings_.given("shutdown_timeout")) {
    faults.collect([&] {
      settings_.set("shutdown_timeout", value, {Source::Kind::environment, seconds});
    });
  }
  for (const RefusedFlag& flag : torchrun_face().refused) {
    const std::string name = "PET_" + plugins::upper(flag.key);
    if (!plugins::variable(environment_, name).empty()) {
      faults.add(name + ": " + std::string(flag.reason));
    }
  }
}

void TorchrunPlanner::count_workers() {
  const Given word = given("nproc_per_node");
  const auto number = plugins::parse_integer(word.text);
  plan_.local_world_size = number ? static_cast<int>(*number) : count_named(word);
  if (number && (*number < 1 || *number > 1'000'000)) {
    throw Error(Errc::config, word.where + " must be at least 1, got " + word.text);
  }
}

int TorchrunPlanner::count_named(const Given& word) const {
  static constexpr std::array<std::string_view, 3> kWords = {"auto", "cpu", "gpu"};
  const int cores = static_cast<int>(facts_.cpus.size());
  const int gpus = static_cast<int>(facts_.visible_gpus.size());
  if (word.text == "cpu" || (word.text == "auto" && gpus == 0)) {
    return cores;
  }
  if (word.text == "auto" || (word.text == "gpu" && gpus > 0)) {
    return gpus;
  }
  if (word.text == "gpu") {
    throw Error(Errc::device, word.where + " gpu asks for GPUs, but none is visible");
  }
  throw Error(Errc::config, word.where + " must be a number, auto, cpu or gpu, got \"" + word.text +
                                "\"" + plugins::did_you_mean(word.text, kWords));
}

void TorchrunPlanner::count_machines() {
  machines_ = read_machine_range(given("nnodes"));
  if (settings_.boolean("standalone")) {
    if (machines_.least > 1) {
      throw Error(Errc::config, "--standalone is for one machine, but " + given("nnodes").where +
                                    " " + settings_.text("nnodes") + " asks for more");
    }
    machines_.most = 1;
  }
  plan_.num_machines = machines_.most;
  plan_.rendezvous.min_machines = machines_.least;
  // Machines may bring different numbers of workers.
  plan_.num_processes = machines_.most == 1 ? plan_.local_world_size : 0;
}

bool TorchrunPlanner::is_standalone() const {
  return settings_.boolean("standalone") ||
         (machines_.most == 1 && settings_.choice("rdzv_backend") == "static" &&
          !settings_.has("rdzv_endpoint") && !settings_.has("master_port"));
}

void TorchrunPlanner::read_rendezvous() {
  plan_.rendezvous.run_id = settings_.text("rdzv_id");
  plan_.rendezvous.local_address = settings_.text("local_addr");
  plan_.role = settings_.text("role");
  plan_.max_restarts = static_cast<int>(settings_.integer("max_restarts"));
  plan_.shutdown_timeout = std::chrono::seconds(settings_.integer("shutdown_timeout"));
  if (is_standalone()) {
    stand_alone();
  } else if (settings_.choice("rdzv_backend") == "static") {
    meet_at_given_address();
  } else {
    meet_at_endpoint();
  }
}

void TorchrunPlanner::stand_alone() {
  for (const std::string key :
       {"rdzv_backend", "rdzv_endpoint", "rdzv_id", "node_rank", "master_addr", "master_port"}) {
    if (settings_.given(key)) {
      notice(given(key).where + " has no effect: one machine stands alone");
    }
  }
  plan_.rendezvous.address = "localhost";
  plan_.rendezvous.port = 0;
  plan_.rendezvous.run_id = random_run_id();
}

void TorchrunPlanner::meet_at_given_address() {
  RendezvousPlan& rendezvous = plan_.rendezvous;
  rendezvous.min_machines = machines_.most;
  rendezvous.address = settings_.text("master_addr");
  rendezvous.port_was_given = settings_.has("master_port");
  if (rendezvous.port_was_given) {
    rendezvous.port = static_cast<std::uint16_t>(settings_.integer("master_port"));
  }
  if (settings_.has("rdzv_endpoint")) {
    const Endpoint endpoint = read_endpoint(given("rdzv_endpoint"));
    rendezvous.address = endpoint.host;
    rendezvous.port = endpoint.port.value_or(rendezvous.port);
    rendezvous.port_was_given = rendezvous.port_was_given || endpoint.port.has_value();
  }
  plan_.machine_rank = static_cast<int>(settings_.integer("node_rank"));
  if (plan_.machine_rank >= machines_.most) {
    throw Error(Errc::config, given("node_rank").where + " " + settings_.text("node_rank") +
                                  " must be below the number of machines, " +
                                  std::to_string(machines_.most));
  }
  if (machines_.most > 1 && rendezvous.port == 0) {
    throw Error(Errc::config,
                "port 0 lets machine 0 choose, and the others cannot know it; name a "
                "port with --master-port");
  }
}

void TorchrunPlanner::meet_at_endpoint() {
  RendezvousPlan& rendezvous = plan_.rendezvous;
  for (const std::string key : {"node_rank", "master_addr", "master_port"}) {
    if (settings_.given(key)) {
      notice(given(key).where + " has no effect with c10d, which hands out ranks and addresses");
    }
  }
  Endpoint endpoint = {"localhost", {}};
  if (settings_.has("rdzv_endpoint")) {
    endpoint = read_endpoint(given("rdzv_endpoint"));
  }
  if (machines_.most == 1) {  // there is nobody to meet; the store gets a port of its own anyway
    rendezvous.address = "localhost";
    rendezvous.port = 0;
    return;
  }
  constexpr std::uint16_t kDefaultPort = 29400;
  rendezvous.backend = RendezvousPlan::Backend::c10d;
  rendezvous.address = endpoint.host;
  rendezvous.port = endpoint.port.value_or(kDefaultPort);
  rendezvous.port_was_given = endpoint.port.has_value();
  if (rendezvous.port == 0) {
    throw Error(Errc::config, given("rdzv_endpoint").where + " " + settings_.text("rdzv_endpoint") +
                                  " lets the port be chosen, and other machines cannot know it; "
                                  "name one");
  }
}

void TorchrunPlanner::read_conf() {
  const auto lines = read_rendezvous_conf(given("rdzv_conf"), plan_.rendezvous);
  if (machines_.most > 1) {
    plan_.notices.insert(plan_.notices.end(), lines.begin(), lines.end());
  }
}

void TorchrunPlanner::read_output() {
  plan_.output =
      plan_output({given("redirects"), given("tee"), given("local_ranks_filter"), given("log_dir")},
                  plan_.rendezvous.run_id, plan_.local_world_size, facts_.working_directory,
                  facts_.scratch_directory);
  if (!plan_.output.to_file.empty() && !settings_.has("log_dir")) {
    notice("the workers' files are in " + plan_.output.directory);
  }
}

void TorchrunPlanner::read_stop_signals() {
  plan_.stop_signals = read_signals(given("signals_to_handle"));
}

void TorchrunPlanner::choose_command() {
  const bool run_path = settings_.boolean("run_path");
  plan_.command = program_command(flags_,
                                  {.module = settings_.boolean("module"),
                                   .no_python = settings_.boolean("no_python") && !run_path,
                                   .only_binaries_without_python = true},
                                  environment_, facts_);
  plan_.replaces_local_rank = true;
  plan_.working_directory = facts_.working_directory.string();
}

void TorchrunPlanner::check_virtual_local_rank() {
  plan_.virtual_local_rank = settings_.boolean("virtual_local_rank");
  if (plan_.virtual_local_rank) {
    check_own_gpus(given("virtual_local_rank").where, plan_.local_world_size, environment_);
  }
}

void TorchrunPlanner::choose_device() {
  const int gpus = static_cast<int>(facts_.visible_gpus.size());
  inherit_settings(plan_, environment_, gpus > 0);
  const bool on_gpus = plan_.device == plugins::Device::cuda;
  if (on_gpus && plan_.local_world_size > gpus && !plan_.virtual_local_rank) {
    notice(std::to_string(plan_.local_world_size) + " workers on " + std::to_string(gpus) +
           (gpus == 1 ? " GPU" : " GPUs"));
  }
}

void TorchrunPlanner::place_on_cores() {
  if (settings_.has("numa_binding")) {
    plan_.numa_binding = numa_binding(settings_.choice("numa_binding"));
  }
  const bool on_gpus = plan_.device == plugins::Device::cuda;
  Placements placements =
      place_workers(plan_.local_world_size, on_gpus ? facts_.visible_gpus : std::vector<int>{},
                    plan_.numa_binding, facts_);
  plan_.gpus = facts_.gpu;
  plan_.placements = std::move(placements.workers);
  plan_.notices.insert(plan_.notices.end(), placements.notices.begin(), placements.notices.end());
}

void TorchrunPlanner::limit_threads() {
  if (plan_.local_world_size > 1 && !environment_.contains("OMP_NUM_THREADS")) {
    plan_.environment["OMP_NUM_THREADS"] = "1";
    notice("OMP_NUM_THREADS is 1 for each of " + std::to_string(plan_.local_world_size) +
           " workers; set it to use more cores");
  }
}

LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts) {
  return TorchrunPlanner(flags, environment, facts).plan();
}

}  // namespace acc::launcher
