// SPDX-License-Identifier: Apache-2.0
// Stage `take_job_environment`: takes machines, ranks, address and port from the job manager that
// started this process, or starts the machines of `--hostfile`. Order of precedence: flags, the job
// manager, the configuration file. By its launcher role (cluster/launcher_role.hpp) this process
// starts the workers of its machine, supervises a single worker, or starts the launchers of all
// machines.
#include "acc/base/input_file.hpp"
#include "accelerate_cli/stages.hpp"
#include "cluster/job_variables.hpp"
#include "cluster/launcher_role.hpp"
#include "host/own_variables.hpp"
#include "plan/remote_launch.hpp"

#include <algorithm>
#include <numeric>

namespace acc::launcher::accelerate_cli {
namespace {

namespace fs = std::filesystem;
using settings::Source;

/// Plan of the start of launchers on other machines, and the number of workers on each of these.
struct RemoteStart {
  RemoteLaunchPlan plan;
  std::vector<int> local_sizes;  ///< by machine rank; empty: each machine decides
};

bool has_flag(const AccelerateDraft& draft, settings::SettingKey key) {
  return draft.settings.source(key).kind == Source::Kind::flag;
}

/// Sets a value from the job manager. It overrides the file but not a flag.
void set_by_job(AccelerateDraft& draft, settings::SettingKey key, const std::string& value,
                const std::string& where) {
  if (!has_flag(draft, key)) {
    draft.settings.set(key, value, {Source::Kind::job, where});
  }
}

/// True if the user numbers the machines: --machine_rank is given, or --num_machines 1 in a job of
/// several machines, which makes each launcher a job of its own.
bool counts_by_itself(const AccelerateDraft& draft, const std::optional<int>& nodes) {
  return has_flag(draft, "machine_rank"_key) ||
         (has_flag(draft, "num_machines"_key) && draft.settings.integer("num_machines"_key) == 1 &&
          nodes.value_or(1) > 1);
}

/// Throws Error(config) if --num_machines does not match the job: a task must use all machines, a
/// script may use fewer.
void check_num_machines(const AccelerateDraft& draft, const cluster::JobEnvironment& place,
                        int nodes) {
  const auto wanted = draft.settings.integer("num_machines"_key);
  const bool fits = place.is_task ? wanted == nodes : wanted <= nodes;
  if (has_flag(draft, "num_machines"_key) && !fits) {
    throw Error(Errc::config, draft.place("num_machines"_key) + " " + std::to_string(wanted) +
                                  ", but " + place.manager.job + " has " + std::to_string(nodes) +
                                  (nodes == 1 ? " machine" : " machines") +
                                  (place.num_nodes ? " (" + place.num_nodes->where + ")" : ""));
  }
}

void set_address(AccelerateDraft& draft, const cluster::JobEnvironment& place) {
  if (place.address) {
    set_by_job(draft, "main_process_ip"_key, place.address->value, place.address->where);
  }
  if (place.port) {
    set_by_job(draft, "main_process_port"_key, std::to_string(place.port->value),
               place.port->where);
  }
}

/// Sets the total number of workers from the job manager if neither a flag nor the file gives it.
void set_num_processes(AccelerateDraft& draft, std::int64_t total, const std::string& where) {
  if (!draft.settings.given("num_processes"_key)) {
    draft.settings.set("num_processes"_key, std::to_string(total), {Source::Kind::job, where});
  }
}

/// Returns the number of workers of each machine: from the acclaunch that started this one, else
/// from the tasks that the job requested. Empty if neither decides it. Sets their total.
std::vector<int> read_local_sizes(AccelerateDraft& draft, const cluster::JobEnvironment& place,
                                  int nodes) {
  const auto told = cluster::JobVariables(draft.environment)
                        .numbers(std::string(host::variables.local_processes.name));
  const std::vector<int> sizes = told ? told->value : cluster::wished_workers(place);
  if (sizes.empty() || draft.settings.has("num_local_processes"_key)) {
    return {};
  }
  const std::string& where = told ? told->where : place.tasks_per_node->where;
  if (std::ssize(sizes) < nodes || std::ranges::min(sizes) < 1) {
    throw Error(Errc::config, where + " must list the number of workers of each of " +
                                  std::to_string(nodes) + " machines");
  }
  if (!told && !draft.facts.visible_gpus.empty() && !draft.settings.given("num_processes"_key)) {
    return {};  // with GPUs the default is one per GPU, whatever number of tasks was requested
  }
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.begin() + nodes, std::int64_t{0});
  set_num_processes(draft, total, where);
  if (draft.settings.integer("num_processes"_key) != total) {
    return {};
  }
  return {sizes.begin(), sizes.begin() + nodes};
}

/// Launcher role `machine`: sets the number of machines, this one's rank, and the address and port
/// of machine 0. Returns the numbers of workers of the machines, as `read_local_sizes`.
std::vector<int> take_part_as_machine(AccelerateDraft& draft, const cluster::JobEnvironment& place,
                                      const std::optional<int>& nodes) {
  std::vector<int> local_sizes;
  if (nodes) {
    check_num_machines(draft, place, *nodes);
    const std::string where = place.num_nodes ? place.num_nodes->where
                              : place.hosts   ? place.hosts->where
                                              : place.num_tasks->where;
    set_by_job(draft, "num_machines"_key, std::to_string(*nodes), where);
    local_sizes = read_local_sizes(draft, place, *nodes);
  }
  const auto& rank = place.node_rank ? place.node_rank : place.rank;
  if (rank) {
    set_by_job(draft, "machine_rank"_key, std::to_string(rank->value), rank->where);
  } else if (nodes == 1) {
    set_by_job(draft, "machine_rank"_key, "0", place.manager.detected_by);
  }
  if (draft.settings.integer("num_machines"_key) > 1) {
    set_address(draft, place);
  } else if (place.port && !draft.settings.given("main_process_port"_key)) {
    set_by_job(draft, "main_process_port"_key, std::to_string(place.port->value),
               place.port->where);
  }
  return local_sizes;
}

/// Launcher role `worker`: this launcher supervises one rank. The job's tasks are the ranks.
OwnRank take_part_as_worker(AccelerateDraft& draft, const cluster::JobEnvironment& place) {
  OwnRank own{.slot = cluster::rank_slot_in(place), .rank = place.rank->value};
  check_num_machines(draft, place, own.slot.num_nodes);
  const Sourced<int>& tasks = *place.num_tasks;
  const std::string machines = place.num_nodes ? place.num_nodes->where : tasks.where;
  set_by_job(draft, "num_machines"_key, std::to_string(own.slot.num_nodes), machines);
  set_by_job(draft, "machine_rank"_key, std::to_string(own.slot.node_rank),
             place.node_rank ? place.node_rank->where : place.rank->where);
  set_num_processes(draft, tasks.value, tasks.where);
  if (own.slot.num_nodes == 1) {
    set_by_job(draft, "main_process_ip"_key, "127.0.0.1", machines);
  }
  set_address(draft, place);
  return own;
}

/// Launcher role `remote_launcher`: this process runs in the job's script and starts the launchers,
/// by srun under Slurm and by ssh elsewhere.
RemoteStart start_machines_of_job(AccelerateDraft& draft, const cluster::JobEnvironment& place,
                                  int nodes) {
  check_num_machines(draft, place, nodes);
  const int wanted = has_flag(draft, "num_machines"_key)
                         ? static_cast<int>(draft.settings.integer("num_machines"_key))
                         : nodes;
  std::vector<int> local_sizes = take_part_as_machine(draft, place, wanted);
  set_by_job(draft, "machine_rank"_key, "0", place.manager.detected_by);
  const std::string known = place.hosts ? place.hosts->where : "";
  if (place.manager.name == "Slurm") {
    return {plan::start_by_srun(draft, wanted, local_sizes), local_sizes};
  }
  std::vector<cluster::Host> hosts;
  for (const std::string& name : place.hosts->value) {
    if (std::ssize(hosts) < wanted) {
      hosts.push_back({name, {}, known});
    }
  }
  return {plan::start_on_hosts(draft, {hosts, local_sizes, false},
                               draft.settings.text("main_process_ip"_key), std::nullopt),
          local_sizes};
}

std::vector<cluster::Host> read_hostfile(const AccelerateDraft& draft) {
  const fs::path path = draft.facts.working_directory / draft.settings.text("hostfile"_key);
  const std::string text = [&] {
    try {
      return read_input_file(path);
    } catch (const Error& error) {
      throw Error(Errc::config, draft.place("hostfile"_key) + ": " + error.what());
    }
  }();
  return cluster::parse_hostfile(text, path.string(), cluster::HostfileForm::any);
}

/// Throws Error(config) if several machines would look for machine 0 at a loopback name.
void check_first_host(const cluster::Host& first, std::size_t count) {
  const std::string name = first.name;
  if (count > 1 && (name == "localhost" || name == "::1" || name.starts_with("127."))) {
    throw Error(Errc::config, first.where + ": machine 0 is " + name +
                                  ", which every other machine resolves to itself; write a name "
                                  "that the other machines can resolve, or pass --main_process_ip");
  }
}

/// Returns the slots of each host as its number of workers. Empty if a host has no slots, or if
/// --num_processes asks for another total.
std::vector<int> slots_as_workers(AccelerateDraft& draft, const std::vector<cluster::Host>& hosts) {
  std::vector<int> slots;
  slots.reserve(hosts.size());
  for (const cluster::Host& host : hosts) {
    slots.push_back(static_cast<int>(host.slots.size()));
  }
  const std::int64_t total = std::accumulate(slots.begin(), slots.end(), std::int64_t{0});
  if (std::ranges::count(slots, 0) > 0) {
    return {};
  }
  set_num_processes(draft, total, hosts.front().where);
  return draft.settings.integer("num_processes"_key) == total ? slots : std::vector<int>{};
}

RemoteStart start_machines_of_hostfile(AccelerateDraft& draft) {
  std::vector<cluster::Host> hosts = read_hostfile(draft);
  if (has_flag(draft, "num_machines"_key)) {
    const auto wanted = static_cast<std::size_t>(draft.settings.integer("num_machines"_key));
    if (wanted > hosts.size()) {
      throw Error(Errc::config, draft.place("num_machines"_key) + " " + std::to_string(wanted) +
                                    ", but " + draft.settings.text("hostfile"_key) + " names " +
                                    std::to_string(hosts.size()));
    }
    hosts.resize(wanted);
  }
  const std::string file = draft.settings.text("hostfile"_key);
  set_by_job(draft, "num_machines"_key, std::to_string(hosts.size()), file);
  set_by_job(draft, "machine_rank"_key, "0", file);
  if (!has_flag(draft, "main_process_ip"_key)) {
    check_first_host(hosts.front(), hosts.size());
    set_by_job(draft, "main_process_ip"_key, hosts.front().name, hosts.front().where);
  }
  std::vector<int> local_sizes = slots_as_workers(draft, hosts);
  std::optional<std::uint16_t> port;
  if (has_flag(draft, "main_process_port"_key)) {
    port = static_cast<std::uint16_t>(draft.settings.integer("main_process_port"_key));
  }
  return {plan::start_on_hosts(draft, {hosts, local_sizes, false},
                               draft.settings.text("main_process_ip"_key), port),
          local_sizes};
}

}  // namespace

JobRole take_job_environment(AccelerateDraft& draft) {
  JobRole role;
  if (!draft.policy.asks_manager) {
    return role;
  }
  const auto place = cluster::find_job_environment(draft.environment, draft.facts);
  const bool is_started = place && place->manager.name == "acclaunch";
  role.is_controlled = host::is_controlled(draft.environment);
  const auto start_remote = [&](RemoteStart start) {
    role.start = std::move(start.plan);
    role.local_sizes = std::move(start.local_sizes);
  };
  if (draft.settings.has("hostfile"_key) && !is_started) {
    if (has_flag(draft, "machine_rank"_key)) {
      throw Error(Errc::config, draft.place("hostfile"_key) +
                                    " starts all machines from here, but " +
                                    draft.place("machine_rank"_key) +
                                    " is for a launcher on each machine; remove one of them");
    }
    start_remote(start_machines_of_hostfile(draft));
    return role;
  }
  if (!place) {
    return role;
  }
  role.manager = place->manager;
  draft.notice_all(place->notices);
  const std::optional<int> nodes = cluster::num_nodes(*place);
  if (counts_by_itself(draft, nodes)) {
    return role;
  }
  if (!place->run_id.value.empty()) {
    role.run_id = place->run_id.value;
  }
  switch (cluster::launcher_role(*place, draft.given("num_processes"_key))) {
    case cluster::LauncherRole::machine:
      role.local_sizes = take_part_as_machine(draft, *place, nodes);
      break;
    case cluster::LauncherRole::worker: role.own_rank = take_part_as_worker(draft, *place); break;
    case cluster::LauncherRole::remote_launcher:
      start_remote(start_machines_of_job(draft, *place, *nodes));
      break;
  }
  return role;
}

}  // namespace acc::launcher::accelerate_cli
