// Planner of `acclaunch torchrun`. It follows torchrun (PyTorch 2.13, torch/distributed/run.py):
// values from flags and PET_* variables, then the number of workers and machines, the rendezvous,
// output, command, device, CPU binding and thread count. Faults of one group of stages are
// collected and reported together; a stage whose result the next group needs raises them first.
#include "cluster/job_environment.hpp"
#include "host/own_variables.hpp"
#include "plan/draft.hpp"
#include "plan/gpu_checks.hpp"
#include "plan/inherited_settings.hpp"
#include "plan/program_command.hpp"
#include "plan/rendezvous_values.hpp"
#include "plan/signal_words.hpp"
#include "torchrun_cli/front_end.hpp"

#include <array>

namespace acc::launcher {
namespace {

using plugins::Faults;
using plugins::SettingRow;

/// Draft of a plan with the result of --nnodes.
struct TorchrunDraft : Draft {
  using Draft::Draft;

  MachineRange machines;
};

/// Reads the PET_* variables. torchrun reads its flags' defaults from them; a variable of a
/// rejected flag is a fault, like the flag.
void read_variables(TorchrunDraft& draft, Faults& faults) {
  for (const SettingRow& row : draft.settings.table()) {
    if (!row.environment.empty()) {
      faults.collect([&] { read_variable(draft, row, std::string(row.environment)); });
    }
  }
  for (const RefusedFlag& flag : torchrun_cli().refused) {
    const std::string name = "PET_" + upper(flag.key);
    if (!plugins::variable(draft.environment, name).empty()) {
      faults.add(name + ": " + std::string(flag.reason));
    }
  }
}

void read_values(TorchrunDraft& draft) {
  Faults faults = draft.flags.faults;
  read_variables(draft, faults);
  read_flags(draft, faults);
  faults.collect([&] { read_variable(draft, "shutdown_timeout"_key, kTorchrunShutdownTimeout); });
  faults.collect([&] { read_supervision(draft); });
  faults.raise();
}

/// Returns the number of workers for `--nproc-per-node auto`, `cpu` or `gpu`.
int count_named(const TorchrunDraft& draft, const Sourced<std::string>& word) {
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
                                word.value + "\"" + plugins::did_you_mean(word.value, kWords));
}

void count_workers(TorchrunDraft& draft) {
  const Sourced<std::string> word = draft.given("nproc_per_node"_key);
  const auto number = parse_integer(word.value);
  draft.plan.layout.local_world_size =
      number ? static_cast<int>(*number) : count_named(draft, word);
  if (number && (*number < 1 || *number > 1'000'000)) {
    throw Error(Errc::config, word.where + " must be at least 1, got " + word.value);
  }
}

void count_machines(TorchrunDraft& draft) {
  draft.machines = read_machine_range(draft.given("nnodes"_key));
  if (draft.settings.boolean("standalone"_key)) {
    if (draft.machines.least > 1) {
      throw Error(Errc::config, "--standalone is for one machine, but " +
                                    draft.given("nnodes"_key).where + " " +
                                    draft.settings.text("nnodes"_key) + " asks for more");
    }
    draft.machines.most = 1;
  }
  draft.plan.layout.num_machines = draft.machines.most;
  draft.plan.rendezvous.min_machines = draft.machines.least;
  // With several machines each may bring its own number of workers, so the rendezvous adds them up.
  draft.plan.layout.num_processes =
      draft.machines.most == 1 ? std::optional(draft.plan.layout.local_world_size) : std::nullopt;
}

/// True for --standalone, and for a single machine without an endpoint: torchrun also lets it
/// choose a free port then, because no other machine has to know it.
bool is_standalone(const TorchrunDraft& draft) {
  return draft.settings.boolean("standalone"_key) ||
         (draft.machines.most == 1 && draft.settings.choice("rdzv_backend"_key) == "static" &&
          !draft.settings.has("rdzv_endpoint"_key) && !draft.settings.has("master_port"_key));
}

/// Plans a rendezvous of one machine: a store on localhost at a free port.
void stand_alone(TorchrunDraft& draft) {
  for (const plugins::SettingKey key : {"rdzv_backend"_key, "rdzv_endpoint"_key, "rdzv_id"_key,
                                        "node_rank"_key, "master_addr"_key, "master_port"_key}) {
    if (draft.settings.given(key)) {
      draft.notice(draft.given(key).where + " has no effect with a single standalone machine");
    }
  }
  draft.plan.rendezvous.address = "localhost";
  draft.plan.rendezvous.port = 0;
  draft.plan.rendezvous.run_id = random_run_id();
}

/// Plans the static rendezvous: machine 0 serves --rdzv-endpoint, else --master-addr and
/// --master-port.
void meet_at_given_address(TorchrunDraft& draft) {
  RendezvousPlan& rendezvous = draft.plan.rendezvous;
  rendezvous.min_machines = draft.machines.most;
  rendezvous.address = draft.settings.text("master_addr"_key);
  rendezvous.port_was_given = draft.settings.has("master_port"_key);
  if (rendezvous.port_was_given) {
    rendezvous.port = static_cast<std::uint16_t>(draft.settings.integer("master_port"_key));
  }
  bool endpoint_names_port = false;
  if (draft.settings.has("rdzv_endpoint"_key)) {
    const Endpoint endpoint = read_endpoint(draft.given("rdzv_endpoint"_key));
    endpoint_names_port = endpoint.port.has_value();
    rendezvous.address = endpoint.host;
    rendezvous.port = endpoint.port.value_or(rendezvous.port);
    rendezvous.port_was_given = rendezvous.port_was_given || endpoint_names_port;
  }
  read_node_rank(draft, draft.machines.most);
  check_port_is_known(rendezvous.port, draft.machines.most,
                      draft.given(endpoint_names_port ? "rdzv_endpoint"_key : "master_port"_key));
}

/// Plans the c10d rendezvous: a daemon or a machine at --rdzv-endpoint assigns the ranks.
void meet_at_endpoint(TorchrunDraft& draft) {
  RendezvousPlan& rendezvous = draft.plan.rendezvous;
  for (const plugins::SettingKey key : {"master_addr"_key, "master_port"_key}) {
    if (draft.settings.given(key)) {
      draft.notice(draft.given(key).where + " has no effect with c10d, which assigns addresses");
    }
  }
  if (draft.settings.given("node_rank"_key)) {  // decides the order of ranks
    read_node_rank(draft, draft.machines.most);
    rendezvous.machine_rank_was_given = true;
  }
  Endpoint endpoint = {"localhost", {}};
  if (draft.settings.has("rdzv_endpoint"_key)) {
    endpoint = read_endpoint(draft.given("rdzv_endpoint"_key));
  }
  if (draft.machines.most == 1) {  // no rendezvous; the store takes a free port in any case
    rendezvous.address = "localhost";
    rendezvous.port = 0;
    return;
  }
  constexpr std::uint16_t kDefaultPort = 29400;
  rendezvous.backend = RendezvousPlan::Backend::c10d;
  rendezvous.address = endpoint.host;
  rendezvous.port = endpoint.port.value_or(kDefaultPort);
  rendezvous.port_was_given = endpoint.port.has_value();
  check_port_is_known(rendezvous.port, draft.machines.most, draft.given("rdzv_endpoint"_key));
}

void read_rendezvous(TorchrunDraft& draft) {
  draft.plan.rendezvous.run_id = draft.settings.text("rdzv_id"_key);
  draft.plan.rendezvous.local_address = draft.settings.text("local_addr"_key);
  draft.plan.role = draft.settings.text("role"_key);
  draft.plan.supervision.max_restarts =
      static_cast<int>(draft.settings.integer("max_restarts"_key));
  if (is_standalone(draft)) {
    stand_alone(draft);
  } else if (draft.settings.choice("rdzv_backend"_key) == "static") {
    meet_at_given_address(draft);
  } else {
    meet_at_endpoint(draft);
  }
}

void choose_command(TorchrunDraft& draft) {
  const bool run_path = draft.settings.boolean("run_path"_key);
  draft.plan.command =
      program_command(draft.flags,
                      {.module = draft.settings.boolean("module"_key),
                       .no_python = draft.settings.boolean("no_python"_key) && !run_path,
                       .only_binaries_without_python = true},
                      draft.environment, draft.facts);
  draft.plan.replaces_local_rank = true;
  draft.plan.working_directory = draft.facts.working_directory.string();
}

void check_virtual_local_rank(TorchrunDraft& draft) {
  draft.plan.virtual_local_rank = draft.settings.boolean("virtual_local_rank"_key);
  if (draft.plan.virtual_local_rank) {
    check_own_gpus(draft.given("virtual_local_rank"_key).where, draft.plan.layout.local_world_size,
                   draft.environment);
  }
}

void choose_device(TorchrunDraft& draft) {
  const int gpus = static_cast<int>(draft.facts.visible_gpus.size());
  inherit_settings(draft.plan, draft.environment, gpus > 0);
  const bool on_gpus = draft.plan.device == plugins::Device::cuda;
  if (on_gpus && draft.plan.layout.local_world_size > gpus && !draft.plan.virtual_local_rank) {
    draft.notice(std::to_string(draft.plan.layout.local_world_size) + " workers on " +
                 std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs"));
  }
}

void bind_workers(TorchrunDraft& draft) {
  if (draft.settings.has("numa_binding"_key)) {
    draft.plan.binding.policy = numa_binding(draft.settings.choice("numa_binding"_key));
  }
  place_on_cores(draft, draft.facts.visible_gpus, draft.facts);
}

/// Sets OMP_NUM_THREADS to 1 for several workers, as torchrun does: without it each worker would
/// start one thread per core.
void limit_threads(TorchrunDraft& draft) {
  if (draft.plan.layout.local_world_size > 1 &&
      !draft.environment.contains(std::string(variables::omp_num_threads.name))) {
    draft.plan.environment["OMP_NUM_THREADS"] = "1";
    draft.notice("OMP_NUM_THREADS is 1 for each of " +
                 std::to_string(draft.plan.layout.local_world_size) +
                 " workers; set it to use more cores");
  }
}

}  // namespace

LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts) {
  TorchrunDraft draft(flags, environment, facts, torchrun_table());
  read_values(draft);
  if (const auto place = find_job_environment(environment, facts)) {
    draft.plan.manager = place->manager;
  }
  Faults faults;
  faults.collect([&] { count_workers(draft); });
  faults.collect([&] { count_machines(draft); });
  faults.raise();
  faults.collect([&] { read_rendezvous(draft); });
  faults.collect([&] { read_rendezvous_conf(draft); });
  faults.collect([&] {
    read_output(draft, {draft.given("redirects"_key), draft.given("tee"_key),
                        draft.given("local_ranks_filter"_key), draft.given("log_dir"_key)});
  });
  faults.collect([&] {
    draft.plan.supervision.stop_signals = read_signals(draft.given("signals_to_handle"_key));
  });
  faults.collect([&] { check_virtual_local_rank(draft); });
  faults.collect([&] { choose_command(draft); });
  faults.raise();
  choose_device(draft);
  bind_workers(draft);
  limit_threads(draft);
  return finished(std::move(draft));
}

}  // namespace acc::launcher
