// SPDX-License-Identifier: Apache-2.0
// Planner of `acclaunch torchrun`. It follows torchrun (PyTorch 2.13, torch/distributed/run.py):
// values from flags and PET_* variables, then the number of workers and machines, the rendezvous,
// output, command, device, CPU binding and thread count. Faults of one group of stages are
// collected and reported together; a stage whose result the next group needs raises them first.
#include "acc/launcher/front_end.hpp"
#include "acc/rendezvous/etcd_address.hpp"
#include "cluster/job_environment.hpp"
#include "host/own_variables.hpp"
#include "plan/draft.hpp"
#include "plan/inherited_settings.hpp"
#include "plan/program_command.hpp"
#include "plan/rendezvous_values.hpp"

#include <array>

namespace acc::launcher::torchrun_cli {
namespace {

using settings::SettingRow;

/// Where the machines meet, and the rank of this one if it is given.
struct Meeting {
  RendezvousPlan rendezvous{};
  int machine_rank = 0;
};

/// Reads the PET_* variables. torchrun reads its flags' defaults from them; a variable of a
/// rejected flag is a fault, like the flag.
void read_variables(plan::Draft& draft) {
  for (const SettingRow& row : draft.settings.table()) {
    if (!row.environment.empty()) {
      draft.faults.collect([&] { plan::read_variable(draft, row, std::string(row.environment)); });
    }
  }
  for (const settings::RefusedFlag& flag : torchrun_front_end().refused) {
    const std::string name = "PET_" + upper(flag.key);
    if (!settings::variable(draft.environment, name).empty()) {
      draft.faults.add(name + ": " + std::string(flag.reason));
    }
  }
}

/// Returns the number of workers for `--nproc-per-node auto`, `cpu` or `gpu`.
int count_named(const plan::Draft& draft, const Sourced<std::string>& word) {
  static constexpr std::array<std::string_view, 3> kWords = {"auto", "cpu", "gpu"};
  const int cores = static_cast<int>(draft.facts.cpus.size());
  const int gpus = static_cast<int>(draft.facts.visible_gpus.size());
  if (word.value == "cpu" || (word.value == "auto" && gpus == 0)) {
    return cores;
  }
  if (word.value == "auto" || (word.value == "gpu" && gpus > 0)) {
    return gpus;
  }
  if (word.value == "gpu") {
    throw Error(Errc::device, word.where + " gpu asks for GPUs, but none is visible");
  }
  throw Error(Errc::config, word.where + " must be a number, auto, cpu or gpu, got \"" +
                                word.value + "\"" + settings::did_you_mean(word.value, kWords));
}

int count_local_workers(const plan::Draft& draft) {
  const Sourced<std::string> word = draft.given("nproc_per_node"_key);
  const auto number = parse_integer(word.value);
  if (number && (*number < 1 || *number > 1'000'000)) {
    throw Error(Errc::config, word.where + " must be at least 1, got " + word.value);
  }
  return number ? static_cast<int>(*number) : count_named(draft, word);
}

plan::MachineRange count_machines(const plan::Draft& draft) {
  plan::MachineRange machines = plan::read_machine_range(draft.given("nnodes"_key));
  if (draft.settings.boolean("standalone"_key)) {
    if (machines.least > 1) {
      throw Error(Errc::config, "--standalone is for one machine, but " +
                                    draft.given("nnodes"_key).where + " " +
                                    draft.settings.text("nnodes"_key) + " asks for more");
    }
    machines.most = 1;
  }
  return machines;
}

/// True for --standalone, and for a single machine without an endpoint: torchrun also lets it
/// choose a free port then, because no other machine has to know it.
bool is_standalone(const plan::Draft& draft, plan::MachineRange machines) {
  return draft.settings.boolean("standalone"_key) ||
         (machines.most == 1 && draft.settings.choice("rdzv_backend"_key) == "static" &&
          !draft.settings.has("rdzv_endpoint"_key) && !draft.settings.has("master_port"_key));
}

/// Plans a rendezvous of one machine: a store on localhost at a free port.
Meeting stand_alone(plan::Draft& draft) {
  for (const settings::SettingKey key : {"rdzv_backend"_key, "rdzv_endpoint"_key, "rdzv_id"_key,
                                         "node_rank"_key, "master_addr"_key, "master_port"_key}) {
    if (draft.settings.given(key)) {
      draft.notice(draft.given(key).where + " has no effect with a single standalone machine");
    }
  }
  return {{.address = "localhost", .port = 0, .run_id = plan::random_run_id()}};
}

/// Plans the static rendezvous: machine 0 serves --rdzv-endpoint, else --master-addr and
/// --master-port.
Meeting meet_at_given_address(const plan::Draft& draft, plan::MachineRange machines) {
  RendezvousPlan rendezvous = {.min_machines = machines.most,
                               .address = draft.settings.text("master_addr"_key),
                               .port_was_given = draft.settings.has("master_port"_key),
                               .run_id = draft.settings.text("rdzv_id"_key)};
  if (rendezvous.port_was_given) {
    rendezvous.port = static_cast<std::uint16_t>(draft.settings.integer("master_port"_key));
  }
  bool endpoint_names_port = false;
  if (draft.settings.has("rdzv_endpoint"_key)) {
    const plan::Endpoint endpoint = plan::read_endpoint(draft.given("rdzv_endpoint"_key));
    endpoint_names_port = endpoint.port.has_value();
    rendezvous.address = endpoint.host;
    rendezvous.port = endpoint.port.value_or(rendezvous.port);
    rendezvous.port_was_given = rendezvous.port_was_given || endpoint_names_port;
  }
  const int machine_rank = plan::read_node_rank(draft, machines.most);
  plan::check_port_is_known(
      rendezvous.port, machines.most,
      draft.given(endpoint_names_port ? "rdzv_endpoint"_key : "master_port"_key));
  return {rendezvous, machine_rank};
}

/// Returns the address of the etcd in which daemons of acc-rendezvous are found.
std::string read_etcd(const plan::Draft& draft) {
  const Sourced<std::string> given = draft.given("rdzv_endpoint"_key);
  if (given.value.empty()) {
    throw Error(Errc::config,
                draft.given("rdzv_backend"_key).where +
                    " etcd needs --rdzv-endpoint HOST[:PORT],..., the members of etcd");
  }
  std::string address = "etcd://" + given.value;
  try {
    rendezvous::parse_etcd_address(address);
  } catch (const Error& error) {
    throw Error(Errc::config, given.where + ": " + error.what());
  }
  return address;
}

/// Plans the c10d rendezvous: a daemon or a machine at --rdzv-endpoint assigns the ranks.
Meeting meet_at_endpoint(plan::Draft& draft, plan::MachineRange machines) {
  for (const settings::SettingKey key : {"master_addr"_key, "master_port"_key}) {
    if (draft.settings.given(key)) {
      draft.notice(draft.given(key).where + " has no effect with c10d, which assigns addresses");
    }
  }
  Meeting meeting = {{.min_machines = machines.least,
                      .run_id = draft.settings.text("rdzv_id"_key),
                      .machine_rank_was_given = draft.settings.given("node_rank"_key)}};
  RendezvousPlan& rendezvous = meeting.rendezvous;
  if (rendezvous.machine_rank_was_given) {  // decides the order of ranks
    meeting.machine_rank = plan::read_node_rank(draft, machines.most);
  }
  if (machines.most == 1) {  // no rendezvous; the store takes a free port in any case
    if (draft.settings.given("rdzv_endpoint"_key) &&
        !draft.settings.text("rdzv_endpoint"_key).ends_with(":0")) {
      draft.notice(plan::not_connected(draft.given("rdzv_endpoint"_key).where, "--nnodes 1:2"));
    }
    rendezvous.address = "localhost";
    rendezvous.port = 0;
    return meeting;
  }
  rendezvous.backend = RendezvousPlan::Backend::c10d;
  constexpr std::uint16_t kDefaultPort = 29400;
  rendezvous.port = kDefaultPort;
  if (draft.settings.choice("rdzv_backend"_key) != "c10d") {
    rendezvous.address = read_etcd(draft);
    return meeting;
  }
  std::vector<plan::Endpoint> endpoints = {{"localhost", {}}};
  if (draft.settings.has("rdzv_endpoint"_key)) {
    endpoints = plan::read_endpoints(draft.given("rdzv_endpoint"_key));
  }
  if (endpoints.size() > 1) {
    rendezvous.address = plan::endpoints_text(endpoints, kDefaultPort);
    return meeting;
  }
  rendezvous.address = endpoints.front().host;
  rendezvous.port = endpoints.front().port.value_or(kDefaultPort);
  rendezvous.port_was_given = endpoints.front().port.has_value();
  plan::check_port_is_known(rendezvous.port, machines.least, draft.given("rdzv_endpoint"_key));
  if (rendezvous.port == 0) {
    draft.notice(draft.given("rdzv_endpoint"_key).where + " " +
                 draft.settings.text("rdzv_endpoint"_key) +
                 ": this machine chooses the port, so that no other one can join");
  }
  return meeting;
}

Meeting read_meeting(plan::Draft& draft, plan::MachineRange machines) {
  Meeting meeting = is_standalone(draft, machines) ? stand_alone(draft)
                    : draft.settings.choice("rdzv_backend"_key) == "static"
                        ? meet_at_given_address(draft, machines)
                        : meet_at_endpoint(draft, machines);
  meeting.rendezvous.local_address = draft.settings.text("local_addr"_key);
  return meeting;
}

plan::ProgramKind program_kind(const plan::Draft& draft) {
  plan::ProgramKind kind = plan::read_program_kind(draft);
  kind.no_python = kind.no_python && !draft.settings.boolean("run_path"_key);
  kind.only_binaries_without_python = true;
  return kind;
}

bool read_virtual_local_rank(const plan::Draft& draft, int local_world_size) {
  const bool is_virtual = draft.settings.boolean("virtual_local_rank"_key);
  if (is_virtual) {
    plan::check_own_gpus(draft.given("virtual_local_rank"_key).where, local_world_size,
                         draft.environment);
  }
  return is_virtual;
}

NumaBinding numa_binding_of(const plan::Draft& draft) {
  return draft.settings.has("numa_binding"_key)
             ? numa_binding(draft.settings.choice("numa_binding"_key))
             : NumaBinding::none;
}

/// Sets OMP_NUM_THREADS to 1 for several workers, as torchrun does: without it each worker would
/// start one thread per core.
void limit_threads(plan::Draft& draft, int local_world_size, WorkerVariables& variables) {
  if (local_world_size > 1 &&
      !draft.environment.contains(std::string(host::variables.omp_num_threads.name))) {
    variables.set["OMP_NUM_THREADS"] = "1";
    draft.notice("OMP_NUM_THREADS is 1 for each of " + std::to_string(local_world_size) +
                 " workers; set it to use more cores");
  }
}

// FrontEnd::plan of the torchrun front end. Each value comes from the flag, else from the variable
// PET_<FLAG>, else from the default.
LaunchPlan plan_torchrun(const Flags& flags, const settings::Environment& environment,
                         const HostFacts& facts) {
  plan::Draft draft(flags, environment, facts, torchrun_front_end().table);
  read_variables(draft);
  plan::read_flags(draft);
  SupervisionPlan supervision =
      draft.result_of([&] { return plan::read_supervision(draft, true); });
  draft.faults.raise();
  const auto place = cluster::find_job_environment(environment, facts);

  RankLayout layout;
  layout.local_world_size = draft.result_of([&] { return count_local_workers(draft); });
  const plan::MachineRange machines = draft.result_of([&] { return count_machines(draft); });
  draft.faults.raise();
  layout.num_machines = machines.most;
  // With several machines each may bring its own number of workers, so the rendezvous adds them up.
  layout.num_processes = machines.most == 1 ? std::optional(layout.local_world_size) : std::nullopt;

  Meeting meeting = draft.result_of([&] { return read_meeting(draft, machines); });
  layout.machine_rank = meeting.machine_rank;
  draft.faults.collect(
      [&] { plan::read_rendezvous_conf(draft, machines.most, meeting.rendezvous); });
  OutputPlan output =
      draft.result_of([&] { return plan::read_output(draft, meeting.rendezvous.run_id, layout); });
  supervision.stop_signals =
      draft.result_of([&] { return plan::read_signals(draft.given("signals_to_handle"_key)); });
  const bool virtual_local_rank =
      draft.result_of([&] { return read_virtual_local_rank(draft, layout.local_world_size); });
  const plan::ProgramKind kind = program_kind(draft);
  std::vector<std::string> command = draft.result_of(
      [&] { return plan::program_command(draft.flags, kind, draft.environment, draft.facts); });
  PreloadPlan preload = draft.result_of([&] { return plan::read_preload(draft, kind, command); });
  draft.faults.raise();

  const auto gpus = static_cast<int>(facts.visible_gpus.size());
  plan::InheritedSettings inherited =
      plan::inherit_settings(draft, Identity::torchrun, layout, {}, gpus > 0);
  const bool on_gpus = inherited.device == settings::Device::cuda;
  if (on_gpus && layout.local_world_size > gpus && !virtual_local_rank) {
    draft.notice(std::to_string(layout.local_world_size) + " workers on " + std::to_string(gpus) +
                 (gpus == 1 ? " GPU" : " GPUs"));
  }
  Binding binding = plan::bind_workers(draft, numa_binding_of(draft), layout.local_world_size,
                                       on_gpus ? facts.visible_gpus : std::vector<int>{}, facts);
  limit_threads(draft, layout.local_world_size, inherited.variables);
  plan::load_package(draft, inherited.variables);
  return plan::finished(std::move(draft), {.command = std::move(command),
                                           .replaces_local_rank = true,
                                           .preload = std::move(preload),
                                           .mode = inherited.mode,
                                           .device = inherited.device,
                                           .sharding = inherited.sharding,
                                           .binding = std::move(binding),
                                           .layout = layout,
                                           .rendezvous = std::move(meeting.rendezvous),
                                           .supervision = std::move(supervision),
                                           .output = std::move(output),
                                           .manager = place ? place->manager : JobManager{},
                                           .virtual_local_rank = virtual_local_rank,
                                           .variables = std::move(inherited.variables)});
}

}  // namespace

}  // namespace acc::launcher::torchrun_cli

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch torchrun starts the workers of a distributed training program with torchrun's "
    "flags.\n\n"
    "  acclaunch torchrun [flags] PROGRAM [arguments of the program]\n\n"
    "PROGRAM runs under Python unless it is a binary or --no-python is given. Flags come before\n"
    "PROGRAM; they may be spelled with - or _ and abbreviated. A flag that is not given is read\n"
    "from the variable PET_<FLAG>, with 1 or 0 for a flag without a value. ${local_rank} in an\n"
    "argument is replaced by the worker's local rank. acclaunch exits with the status of the\n"
    "worker that failed.\n";

constexpr std::array kRefused = {
    settings::RefusedFlag{"logs_specs",
                          "it names a Python object; use --log-dir, --redirects and --tee"},
};

}  // namespace

const FrontEnd& torchrun_front_end() noexcept {
  static const auto kTable = plan::with_common_rows(flag_rows::kTorchrun);
  static const FrontEnd kFrontEnd{
      {.table = kTable, .refused = kRefused, .separator = '-', .abbreviates = true},
      "torchrun",
      kUsage,
      torchrun_cli::plan_torchrun};
  return kFrontEnd;
}

}  // namespace acc::launcher
