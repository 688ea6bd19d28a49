// SPDX-License-Identifier: Apache-2.0
// Selection of hosts and slots for `acclaunch deepspeed`, as in DeepSpeed 0.19.8
// (launcher/runner.py): the hostfile, filtered by --include or --exclude, or cut to the first
// --num_nodes and --num_gpus. Without a hostfile the only host is this machine, whose slots are its
// GPUs, or those of CUDA_VISIBLE_DEVICES if no flag selects GPUs.
#include "deepspeed_cli/choose_hosts.hpp"

#include "acc/base/input_file.hpp"
#include "acc/base/text.hpp"
#include "acc/settings/faults.hpp"
#include "host/own_variables.hpp"
#include "plan/program_command.hpp"
#include "plan/remote_launch.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace acc::launcher::deepspeed_cli {
namespace {

namespace fs = std::filesystem;
using settings::Faults;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Returns the host name without its domain: `node1` for `node1.example`.
std::string_view first_label(std::string_view name) {
  return name.substr(0, name.find('.'));
}

/// Returns the slots of this machine when there is no hostfile: its GPUs. Without GPUs it has as
/// many slots as --num_gpus requests, else one; --include and --exclude may then select among its
/// CPUs.
std::vector<int> slots_of_this_machine(plan::Draft& draft) {
  const bool by_variable = variable_chooses(draft, false);
  const bool on_gpus = uses_gpus(draft, false);
  if (on_gpus && by_variable) {
    return draft.facts.visible_gpus;
  }
  if (!by_variable &&
      !host::value_of(draft.environment, host::variables.cuda_visible_devices).empty()) {
    draft.notice(
        "CUDA_VISIBLE_DEVICES has no effect together with --include, --exclude or --num_gpus");
  }
  const bool filtered = draft.settings.has("include"_key) || draft.settings.has("exclude"_key);
  const auto wanted = static_cast<std::size_t>(draft.settings.integer("num_gpus"_key));
  const std::size_t on_cpu = filtered ? draft.facts.cpus.size() : std::max<std::size_t>(1, wanted);
  std::vector<int> slots(on_gpus ? draft.facts.gpu.devices.size() : on_cpu);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

/// Applies --num_nodes. Throws Error(config) if there are fewer hosts.
void keep_first_hosts(const plan::Draft& draft, JobHosts& job) {
  const auto wanted = static_cast<std::size_t>(draft.settings.integer("num_nodes"_key));
  if (wanted > job.hosts.size()) {
    throw Error(Errc::config,
                "--num_nodes " + std::to_string(wanted) + ", but " +
                    (job.file_names_hosts ? draft.settings.text("hostfile"_key) + " names " +
                                                std::to_string(job.hosts.size())
                                          : "there is no hostfile that lists other machines"));
  }
  if (wanted > 0) {
    job.hosts.resize(wanted);
  }
}

/// Applies --num_gpus to every host. Throws Error(config) if a host has fewer slots, unless workers
/// may share GPUs.
void keep_first_slots(const plan::Draft& draft, std::vector<cluster::Host>& hosts) {
  if (!draft.settings.has("num_gpus"_key)) {
    return;
  }
  std::vector<int> first(static_cast<std::size_t>(draft.settings.integer("num_gpus"_key)));
  std::iota(first.begin(), first.end(), 0);
  Faults faults;
  for (cluster::Host& host : hosts) {
    if (first.size() > host.slots.size() && !plan::shares_gpus(draft.environment)) {
      faults.add("--num_gpus " + std::to_string(first.size()) + ", but " +
                 (host.where.empty() ? "this machine" : host.where + ": " + host.name) + " has " +
                 std::to_string(host.slots.size()));
    }
    host.slots = first;
  }
  faults.raise();
}

/// Returns the index of the host with this machine's `host_name`; -1 if there is none.
int rank_of_host_name(const std::string& host_name, const std::vector<cluster::Host>& hosts) {
  const auto found = std::ranges::find_if(hosts, [&](const cluster::Host& host) {
    return first_label(host.name) == first_label(host_name);
  });
  return found == hosts.end() ? -1 : static_cast<int>(found - hosts.begin());
}

/// Returns the command to run on each machine, one line per machine, for an error message.
std::string machines_to_type_on(const Flags& given, const std::vector<cluster::Host>& hosts) {
  std::string flags;
  for (const std::string& word : given.own_arguments) {
    flags += word == "--no_ssh" ? "" : " " + shell_quoted(word);
  }
  std::string text;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    text += "\n  on " + hosts[rank].name + ":  acclaunch deepspeed" + flags +
            " --no_ssh --node_rank " + std::to_string(rank) + plan::quoted_program(given);
  }
  return text;
}

}  // namespace

void check_contradictions(const settings::Settings& settings) {
  Faults faults;
  if (settings.has("include"_key) && settings.has("exclude"_key)) {
    faults.add("--include and --exclude contradict each other; choose one");
  }
  for (const settings::SettingKey filter : {"include"_key, "exclude"_key}) {
    for (const settings::SettingKey count : {"num_nodes"_key, "num_gpus"_key}) {
      if (settings.has(filter) && settings.has(count)) {
        faults.add("--" + filter.text() + " and --" + count.text() +
                   " both select slots; remove one of them");
      }
    }
  }
  faults.raise();
}

bool variable_chooses(const plan::Draft& draft, bool file_names_hosts) {
  return !file_names_hosts &&
         !host::value_of(draft.environment, host::variables.cuda_visible_devices).empty() &&
         !draft.settings.has("include"_key) && !draft.settings.has("exclude"_key) &&
         !draft.settings.has("num_gpus"_key);
}

bool uses_gpus(const plan::Draft& draft, bool file_names_hosts) {
  return !(variable_chooses(draft, file_names_hosts) ? draft.facts.visible_gpus.empty()
                                                     : draft.facts.gpu.devices.empty());
}

bool starts_machines(const plan::Draft& draft, const JobHosts& job,
                     const cluster::JobEnvironment* remote_launcher) {
  const bool several = job.hosts.size() > 1 || draft.settings.boolean("force_multi"_key);
  return several && !draft.settings.boolean("no_ssh"_key) && remote_launcher == nullptr;
}

JobHosts choose_hosts(plan::Draft& draft, const cluster::JobEnvironment* remote_launcher) {
  const std::string chosen = host::value_of(draft.environment, host::variables.hosts);
  if (remote_launcher != nullptr && !chosen.empty()) {
    return {plan::read_chosen_slots({chosen, std::string(host::variables.hosts.name)}), true};
  }
  const fs::path path = draft.facts.working_directory / draft.settings.text("hostfile"_key);
  if (draft.settings.has("hostfile"_key) && fs::is_directory(path)) {
    throw Error(Errc::config, "--hostfile " + draft.settings.text("hostfile"_key) + " is a folder");
  }
  JobHosts job = {.file_names_hosts = is_file(path)};
  if (job.file_names_hosts) {
    job.hosts = cluster::parse_hostfile(read_input_file(path), draft.settings.text("hostfile"_key));
  } else {
    if (draft.settings.has("hostfile"_key) && draft.settings.given("hostfile"_key)) {
      draft.notice("there is no hostfile " + draft.settings.text("hostfile"_key) +
                   "; the job runs on this machine only");
    }
    job.hosts = {{"localhost", slots_of_this_machine(draft), ""}};
  }
  job.hosts = cluster::only_included(job.hosts, draft.given("include"_key));
  job.hosts = cluster::without_excluded(job.hosts, draft.given("exclude"_key));
  Faults faults;
  faults.collect([&] { keep_first_hosts(draft, job); });
  faults.collect([&] { keep_first_slots(draft, job.hosts); });
  faults.raise();
  return job;
}

// The rank comes from the acclaunch that started this one, else from --node_rank, else from the
// position of this machine's host name in the hostfile.
RankLayout find_this_machine(const plan::Draft& draft, const JobHosts& job,
                             const cluster::JobEnvironment* remote_launcher) {
  const std::vector<cluster::Host>& hosts = job.hosts;
  RankLayout layout;
  layout.num_machines = static_cast<int>(hosts.size());
  if (remote_launcher != nullptr) {
    layout.machine_rank = remote_launcher->node_rank->value;
    if (layout.machine_rank >= layout.num_machines) {
      throw Error(Errc::config, remote_launcher->node_rank->where + " is " +
                                    std::to_string(layout.machine_rank) + ", but " +
                                    hosts.front().where + " names " + std::to_string(hosts.size()) +
                                    " hosts");
    }
  } else if (!starts_machines(draft, job, remote_launcher)) {
    const bool is_known = layout.num_machines == 1 || draft.settings.has("node_rank"_key);
    layout.machine_rank = is_known ? plan::read_node_rank(draft, layout.num_machines)
                                   : rank_of_host_name(draft.facts.hostname, hosts);
  }
  if (layout.machine_rank < 0) {
    throw Error(Errc::config, "--no_ssh needs --node_rank, because " + draft.facts.hostname +
                                  " is not in the hostfile; run" +
                                  machines_to_type_on(draft.flags, hosts));
  }
  const std::size_t slots = hosts[static_cast<std::size_t>(layout.machine_rank)].slots.size();
  layout.local_world_size = static_cast<int>(slots);
  const bool same = std::ranges::all_of(hosts, [&](const cluster::Host& host) {
    return host.slots.size() == hosts.front().slots.size();
  });
  layout.num_processes = same ? std::optional(world_size_of(hosts)) : std::nullopt;
  return layout;
}

int world_size_of(const std::vector<cluster::Host>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const cluster::Host& host) {
    return sum + static_cast<int>(host.slots.size());
  });
}

void check_slots(const plan::Draft& draft, const JobHosts& job, const cluster::Host& this_host) {
  const int last = std::ranges::max(this_host.slots);
  const auto gpus = static_cast<int>(draft.facts.gpu.devices.size());
  if (uses_gpus(draft, job.file_names_hosts) && last >= gpus &&
      !plan::shares_gpus(draft.environment)) {
    throw Error(Errc::device, (this_host.where.empty() ? "" : this_host.where + ": ") +
                                  this_host.name + " has no slot " + std::to_string(last) +
                                  ": the number of GPUs on this machine is " +
                                  std::to_string(gpus) +
                                  "; to let workers share GPUs, set ACC_SHARE_GPUS=1");
  }
}

}  // namespace acc::launcher::deepspeed_cli
