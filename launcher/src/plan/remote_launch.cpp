// SPDX-License-Identifier: Apache-2.0
// Plans of jobs whose machines are started from this process, by ssh, pdsh or srun. Each machine
// gets the same command line as this process, so that it plans its own workers, and learns its rank
// and the address of machine 0 from ACC_* variables (host/own_variables.hpp).
#include "plan/remote_launch.hpp"

#include "cluster/job_variables.hpp"
#include "host/own_variables.hpp"
#include "plan/rendezvous_values.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher::plan {
namespace {

/// Formats hosts and slots as `node0:0,1@node1:0,1`, the notation of `--include`.
std::string slots_of(const std::vector<cluster::Host>& hosts) {
  std::string text;
  for (const cluster::Host& host : hosts) {
    text += (text.empty() ? "" : "@") + host.name + ":" + joined(host.slots);
  }
  return text;
}

/// Returns the part of the plan that all means share.
RemoteLaunchPlan start_from_here(const Draft& draft, RemoteLaunchPlan::Means means) {
  RemoteLaunchPlan start;
  start.means = means;
  start.arguments = draft.flags.typed;
  start.executable = (draft.facts.executable_directory / "acclaunch").string();
  start.working_directory = draft.facts.working_directory.string();
  for (const std::string_view word : split(draft.settings.text("launcher_args"_key), ' ')) {
    if (!word.empty()) {
      start.client_options.emplace_back(word);
    }
  }
  if (draft.settings.has("ssh_port"_key)) {
    start.ssh_port = static_cast<int>(draft.settings.integer("ssh_port"_key));
  }
  return start;
}

/// Returns the client that `--launcher` names. Adds a notice for DeepSpeed's other launchers (MPI,
/// Slurm), which ssh replaces.
RemoteLaunchPlan::Means means_for_hosts(Draft& draft) {
  const std::string asked =
      draft.settings.given("launcher"_key) ? draft.settings.choice("launcher"_key) : "ssh";
  if (asked != "ssh" && asked != "pdsh") {
    draft.notice(draft.given("launcher"_key).where + " " + asked +
                 " has no effect: acclaunch starts the machines by ssh");
  }
  return asked == "pdsh" ? RemoteLaunchPlan::Means::pdsh : RemoteLaunchPlan::Means::ssh;
}

}  // namespace

RemoteLaunchPlan start_on_hosts(Draft& draft, const RemoteHosts& wanted, const std::string& address,
                                std::optional<std::uint16_t> port) {
  RemoteLaunchPlan start = start_from_here(draft, means_for_hosts(draft));
  start.run_id = random_run_id();
  const auto set = [&](const host::OwnVariable& variable, const std::string& value) {
    start.environment[std::string(variable.name)] = value;
  };
  set(host::variables.job_id, start.run_id);
  set(host::variables.num_machines, std::to_string(wanted.hosts.size()));
  set(host::variables.main_process_ip, address);
  set(host::variables.main_process_port,
      std::to_string(port.value_or(cluster::port_of(start.run_id))));
  if (!wanted.workers.empty()) {
    set(host::variables.local_processes, joined(wanted.workers));
  }
  if (wanted.names_slots) {
    set(host::variables.hosts, slots_of(wanted.hosts));
  }
  for (const cluster::Host& host : wanted.hosts) {
    const std::string rank = std::to_string(start.machines.size());
    start.machines.push_back(
        {cluster::login_of(host), {{std::string(host::variables.machine_rank.name), rank}}});
  }
  return start;
}

RemoteLaunchPlan start_by_srun(const Draft& draft, int num_machines,
                               const std::vector<int>& workers) {
  RemoteLaunchPlan start = start_from_here(draft, RemoteLaunchPlan::Means::srun);
  start.machines.resize(static_cast<std::size_t>(num_machines));
  if (!workers.empty()) {
    start.environment[std::string(host::variables.local_processes.name)] = joined(workers);
  }
  return start;
}

std::vector<cluster::Host> read_chosen_slots(const Sourced<std::string>& given) {
  std::vector<cluster::Host> hosts;
  for (const std::string_view entry : entries_of(given.value, '@')) {
    const auto colon = std::min(entry.find(':'), entry.size());
    cluster::Host host{std::string(entry.substr(0, colon)), {}, given.where};
    for (const std::string_view word :
         entries_of(entry.substr(std::min(colon + 1, entry.size())))) {
      const auto slot = read_number(word);
      if (!slot || host.name.empty()) {
        throw bad_value(given, "HOST:SLOT,SLOT joined by @");
      }
      host.slots.push_back(*slot);
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

}  // namespace acc::launcher::plan
