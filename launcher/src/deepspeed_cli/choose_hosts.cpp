// Selection of hosts and slots for `acclaunch deepspeed`, as in DeepSpeed 0.19.8
// (launcher/runner.py): the hostfile, filtered by --include or --exclude, or cut to the first
// --num_nodes and --num_gpus. Without a hostfile the only host is this machine, whose slots are its
// GPUs, or those of CUDA_VISIBLE_DEVICES if no flag selects GPUs.
#include "deepspeed_cli/choose_hosts.hpp"

#include "acc/base/input_file.hpp"
#include "acc/base/text.hpp"
#include "acc/plugins/faults.hpp"
#include "host/own_variables.hpp"
#include "plan/gpu_checks.hpp"
#include "plan/machines.hpp"
#include "plan/remote_launch.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;
using plugins::Faults;

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
std::vector<int> slots_of_this_machine(DeepSpeedDraft& draft) {
  if (uses_gpus(draft) && variable_chooses(draft)) {
    return draft.facts.visible_gpus;
  }
  if (!variable_chooses(draft) &&
      !value_of(draft.environment, variables::cuda_visible_devices).empty()) {
    draft.notice(
        "CUDA_VISIBLE_DEVICES has no effect together with --include, --exclude or --num_gpus");
  }
  const bool filtered = draft.settings.has("include"_key) || draft.settings.has("exclude"_key);
  const auto wanted = static_cast<std::size_t>(draft.settings.integer("num_gpus"_key));
  const std::size_t on_cpu = filtered ? draft.facts.cpus.size() : std::max<std::size_t>(1, wanted);
  std::vector<int> slots(uses_gpus(draft) ? draft.facts.gpu.devices.size() : on_cpu);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

/// Applies --num_nodes. Throws Error(config) if there are fewer hosts.
void keep_first_hosts(DeepSpeedDraft& draft) {
  const auto wanted = static_cast<std::size_t>(draft.settings.integer("num_nodes"_key));
  if (wanted > draft.hosts.size()) {
    throw Error(Errc::config,
                "--num_nodes " + std::to_string(wanted) + ", but " +
                    (draft.file_names_hosts ? draft.settings.text("hostfile"_key) + " names " +
                                                  std::to_string(draft.hosts.size())
                                            : "there is no hostfile that lists other machines"));
  }
  if (wanted > 0) {
    draft.hosts.resize(wanted);
  }
}

/// Applies --num_gpus to every host. Throws Error(config) if a host has fewer slots, unless workers
/// may share GPUs.
void keep_first_slots(DeepSpeedDraft& draft) {
  if (!draft.settings.has("num_gpus"_key)) {
    return;
  }
  std::vector<int> first(static_cast<std::size_t>(draft.settings.integer("num_gpus"_key)));
  std::iota(first.begin(), first.end(), 0);
  Faults faults;
  for (Host& host : draft.hosts) {
    if (first.size() > host.slots.size() && !shares_gpus(draft.environment)) {
      faults.add("--num_gpus " + std::to_string(first.size()) + ", but " +
                 (host.where.empty() ? "this machine" : host.where + ": " + host.name) + " has " +
                 std::to_string(host.slots.size()));
    }
    host.slots = first;
  }
  faults.raise();
}

/// Returns the index of the host with this machine's host name; -1 if there is none.
int rank_of_host_name(const DeepSpeedDraft& draft) {
  const auto found = std::ranges::find_if(draft.hosts, [&](const Host& host) {
    return first_label(host.name) == first_label(draft.facts.hostname);
  });
  return found == draft.hosts.end() ? -1 : static_cast<int>(found - draft.hosts.begin());
}

/// Returns the command to run on each machine, one line per machine, for an error message.
std::string machines_to_type_on(const DeepSpeedDraft& draft) {
  std::string flags;
  for (const std::string& word : draft.flags.own_arguments) {
    flags += word == "--no_ssh" ? "" : " " + shell_quoted(word);
  }
  std::string text;
  for (std::size_t rank = 0; rank < draft.hosts.size(); ++rank) {
    text += "\n  on " + draft.hosts[rank].name + ":  acclaunch deepspeed" + flags +
            " --no_ssh --node_rank " + std::to_string(rank) + quoted_program(draft.flags);
  }
  return text;
}

}  // namespace

void check_contradictions(const plugins::Settings& settings) {
  Faults faults;
  if (settings.has("include"_key) && settings.has("exclude"_key)) {
    faults.add("--include and --exclude contradict each other; choose one");
  }
  for (const plugins::SettingKey filter : {"include"_key, "exclude"_key}) {
    for (const plugins::SettingKey count : {"num_nodes"_key, "num_gpus"_key}) {
      if (settings.has(filter) && settings.has(count)) {
        faults.add("--" + filter.text() + " and --" + count.text() +
                   " both select slots; remove one of them");
      }
    }
  }
  faults.raise();
}

bool variable_chooses(const DeepSpeedDraft& draft) {
  return !draft.file_names_hosts &&
         !value_of(draft.environment, variables::cuda_visible_devices).empty() &&
         !draft.settings.has("include"_key) && !draft.settings.has("exclude"_key) &&
         !draft.settings.has("num_gpus"_key);
}

bool uses_gpus(const DeepSpeedDraft& draft) {
  return !(variable_chooses(draft) ? draft.facts.visible_gpus.empty()
                                   : draft.facts.gpu.devices.empty());
}

bool starts_machines(const DeepSpeedDraft& draft) {
  const bool several = draft.hosts.size() > 1 || draft.settings.boolean("force_multi"_key);
  return several && !draft.settings.boolean("no_ssh"_key) && !draft.place;
}

void choose_hosts(DeepSpeedDraft& draft) {
  const std::string chosen = value_of(draft.environment, variables::hosts);
  if (draft.place && !chosen.empty()) {
    draft.hosts = read_chosen_slots({chosen, std::string(variables::hosts.name)});
    draft.file_names_hosts = true;
    return;
  }
  const fs::path path = draft.facts.working_directory / draft.settings.text("hostfile"_key);
  if (draft.settings.has("hostfile"_key) && fs::is_directory(path)) {
    throw Error(Errc::config, "--hostfile " + draft.settings.text("hostfile"_key) + " is a folder");
  }
  draft.file_names_hosts = is_file(path);
  if (draft.file_names_hosts) {
    draft.hosts = parse_hostfile(read_input_file(path), draft.settings.text("hostfile"_key));
  } else {
    if (draft.settings.has("hostfile"_key) && draft.settings.given("hostfile"_key)) {
      draft.notice("there is no hostfile " + draft.settings.text("hostfile"_key) +
                   "; the job runs on this machine only");
    }
    draft.hosts = {{"localhost", slots_of_this_machine(draft), ""}};
  }
  draft.hosts = only_included(draft.hosts, draft.given("include"_key));
  draft.hosts = without_excluded(draft.hosts, draft.given("exclude"_key));
  Faults faults;
  faults.collect([&] { keep_first_hosts(draft); });
  faults.collect([&] { keep_first_slots(draft); });
  faults.raise();
}

// The rank comes from the acclaunch that started this one, else from --node_rank, else from the
// position of this machine's host name in the hostfile.
void find_this_machine(DeepSpeedDraft& draft) {
  const bool one = draft.hosts.size() == 1;
  if (draft.place) {
    draft.plan.layout.machine_rank = draft.place->node_rank->value;
    if (draft.plan.layout.machine_rank >= std::ssize(draft.hosts)) {
      throw Error(Errc::config, draft.place->node_rank->where + " is " +
                                    std::to_string(draft.plan.layout.machine_rank) + ", but " +
                                    draft.hosts.front().where + " names " +
                                    std::to_string(draft.hosts.size()) + " hosts");
    }
  } else if (starts_machines(draft)) {
    draft.plan.layout.machine_rank = 0;
  } else if (one || draft.settings.has("node_rank"_key)) {
    read_node_rank(draft, static_cast<int>(draft.hosts.size()));
  } else {
    draft.plan.layout.machine_rank = rank_of_host_name(draft);
  }
  if (draft.plan.layout.machine_rank < 0) {
    throw Error(Errc::config, "--no_ssh needs --node_rank, because " + draft.facts.hostname +
                                  " is not in the hostfile; run" + machines_to_type_on(draft));
  }
  draft.plan.layout.num_machines = static_cast<int>(draft.hosts.size());
  draft.plan.layout.local_world_size = static_cast<int>(draft.this_host().slots.size());
  bool same = true;
  for (const Host& host : draft.hosts) {
    draft.world_size += static_cast<int>(host.slots.size());
    same = same && host.slots.size() == draft.hosts.front().slots.size();
  }
  draft.plan.layout.num_processes = same ? std::optional(draft.world_size) : std::nullopt;
}

void check_slots(const DeepSpeedDraft& draft) {
  const Host& host = draft.this_host();
  const int last = std::ranges::max(host.slots);
  const auto gpus = static_cast<int>(draft.facts.gpu.devices.size());
  if (uses_gpus(draft) && last >= gpus && !shares_gpus(draft.environment)) {
    throw Error(Errc::device,
                (host.where.empty() ? "" : host.where + ": ") + host.name + " has no slot " +
                    std::to_string(last) + ": the number of GPUs on this machine is " +
                    std::to_string(gpus) + "; to let workers share GPUs, set ACC_SHARE_GPUS=1");
  }
}

}  // namespace acc::launcher
