// Which machines and slots take part, and which of the machines this is.
#include "acc/plugins/faults.hpp"
#include "faces/deepspeed/planner.hpp"
#include "plan/machines.hpp"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

namespace acc::launcher {

namespace fs = std::filesystem;
using plugins::Faults;

namespace {

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string whole_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// `node1` of `node1.example`.
std::string_view first_label(std::string_view name) {
  return name.substr(0, name.find('.'));
}

}  // namespace

void DeepSpeedPlanner::check_contradictions() const {
  Faults faults;
  if (settings_.has("include") && settings_.has("exclude")) {
    faults.add("--include and --exclude contradict each other; choose one");
  }
  for (const std::string filter : {"include", "exclude"}) {
    for (const std::string count : {"num_nodes", "num_gpus"}) {
      if (settings_.has(filter) && settings_.has(count)) {
        faults.add("--" + filter + " and --" + count + " both choose what to use; take one out");
      }
    }
  }
  faults.raise();
}

void DeepSpeedPlanner::choose_hosts() {
  const fs::path path = facts_.working_directory / settings_.text("hostfile");
  if (settings_.has("hostfile") && fs::is_directory(path)) {
    throw Error(Errc::config, "--hostfile " + settings_.text("hostfile") + " is a folder");
  }
  file_names_hosts_ = is_file(path);
  if (file_names_hosts_) {
    hosts_ = parse_hostfile(whole_file(path), settings_.text("hostfile"));
  } else {
    if (settings_.has("hostfile") && settings_.given("hostfile")) {
      notice("there is no hostfile " + settings_.text("hostfile") + "; this machine works alone");
    }
    hosts_ = {{"localhost", slots_of_this_machine(), ""}};
  }
  hosts_ = only_included(hosts_, given("include"));
  hosts_ = without_excluded(hosts_, given("exclude"));
  Faults faults;
  faults.collect([&] { keep_first_hosts(); });
  faults.collect([&] { keep_first_slots(); });
  faults.raise();
}

bool DeepSpeedPlanner::variable_chooses() const {
  return !file_names_hosts_ && !plugins::variable(environment_, "CUDA_VISIBLE_DEVICES").empty() &&
         !settings_.has("include") && !settings_.has("exclude") && !settings_.has("num_gpus");
}

bool DeepSpeedPlanner::uses_gpus() const {
  return !(variable_chooses() ? facts_.visible_gpus.empty() : facts_.gpu.devices.empty());
}

std::vector<int> DeepSpeedPlanner::slots_of_this_machine() {
  if (uses_gpus() && variable_chooses()) {
    return facts_.visible_gpus;
  }
  if (!variable_chooses() && !plugins::variable(environment_, "CUDA_VISIBLE_DEVICES").empty()) {
    notice("CUDA_VISIBLE_DEVICES has no effect beside --include, --exclude or --num_gpus");
  }
  const bool filtered = settings_.has("include") || settings_.has("exclude");
  const auto wanted = static_cast<std::size_t>(settings_.integer("num_gpus"));
  const std::size_t on_cpu = filtered ? facts_.cpus.size() : std::max<std::size_t>(1, wanted);
  std::vector<int> slots(uses_gpus() ? facts_.gpu.devices.size() : on_cpu);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

void DeepSpeedPlanner::keep_first_hosts() {
  const auto wanted = static_cast<std::size_t>(settings_.integer("num_nodes"));
  if (wanted > hosts_.size()) {
    throw Error(Errc::config, "--num_nodes " + std::to_string(wanted) + ", but " +
                                  (file_names_hosts_ ? settings_.text("hostfile") + " names " +
                                                           std::to_string(hosts_.size())
                                                     : "there is no hostfile to name others"));
  }
  if (wanted > 0) {
    hosts_.resize(wanted);
  }
}

void DeepSpeedPlanner::keep_first_slots() {
  if (!settings_.has("num_gpus")) {
    return;
  }
  std::vector<int> first(static_cast<std::size_t>(settings_.integer("num_gpus")));
  std::iota(first.begin(), first.end(), 0);
  Faults faults;
  for (Host& host : hosts_) {
    if (first.size() > host.slots.size() && !shares_gpus()) {
      faults.add("--num_gpus " + std::to_string(first.size()) + ", but " +
                 (host.where.empty() ? "this machine" : host.where + ": " + host.name) + " has " +
                 std::to_string(host.slots.size()));
    }
    host.slots = first;
  }
  faults.raise();
}

void DeepSpeedPlanner::find_this_machine() {
  const bool one = hosts_.size() == 1;
  if (!one && !settings_.boolean("no_ssh")) {
    throw Error(Errc::config, std::to_string(hosts_.size()) +
                                  " machines are not started from one by ssh; type" +
                                  machines_to_start());
  }
  const int rank = settings_.has("node_rank") ? static_cast<int>(settings_.integer("node_rank"))
                   : one                      ? 0
                                              : rank_of_host_name();
  if (rank < 0) {
    throw Error(Errc::config, "--no_ssh needs --node_rank, since " + facts_.hostname +
                                  " is not in the hostfile; type" + machines_to_start());
  }
  if (rank >= static_cast<int>(hosts_.size())) {
    throw Error(Errc::config, "--node_rank " + std::to_string(rank) +
                                  " must be below the number of machines, " +
                                  std::to_string(hosts_.size()));
  }
  plan_.machine_rank = rank;
  plan_.num_machines = static_cast<int>(hosts_.size());
  plan_.local_world_size = static_cast<int>(this_host().slots.size());
  bool same = true;
  for (const Host& host : hosts_) {
    world_size_ += static_cast<int>(host.slots.size());
    same = same && host.slots.size() == hosts_.front().slots.size();
  }
  plan_.num_processes = same ? world_size_ : 0;  // 0: the machines bring different numbers
}

int DeepSpeedPlanner::rank_of_host_name() const {
  const auto found = std::ranges::find_if(hosts_, [&](const Host& host) {
    return first_label(host.name) == first_label(facts_.hostname);
  });
  return found == hosts_.end() ? -1 : static_cast<int>(found - hosts_.begin());
}

std::string DeepSpeedPlanner::machines_to_start() const {
  std::string flags;
  for (const std::string& word : flags_.own_arguments) {
    flags += word == "--no_ssh" ? "" : " " + shell_quoted(word);
  }
  std::string program = " " + shell_quoted(flags_.program.empty() ? "PROGRAM" : flags_.program);
  for (const std::string& word : flags_.arguments) {
    program += " " + shell_quoted(word);
  }
  std::string text;
  for (std::size_t rank = 0; rank < hosts_.size(); ++rank) {
    text += "\n  on " + hosts_[rank].name + ":  acclaunch deepspeed" + flags +
            " --no_ssh --node_rank " + std::to_string(rank) + program;
  }
  return text;
}

void DeepSpeedPlanner::check_slots() const {
  const Host& host = this_host();
  const int last = std::ranges::max(host.slots);
  const auto gpus = static_cast<int>(facts_.gpu.devices.size());
  if (uses_gpus() && last >= gpus && !shares_gpus()) {
    throw Error(Errc::device, (host.where.empty() ? "" : host.where + ": ") + host.name +
                                  " has no slot " + std::to_string(last) +
                                  ": the GPUs of this machine are " + std::to_string(gpus) +
                                  "; let workers share them with ACC_SHARE_GPUS=1");
  }
}

}  // namespace acc::launcher
