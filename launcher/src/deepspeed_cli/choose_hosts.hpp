#pragma once

#include "cluster/hostfile.hpp"
#include "cluster/job_environment.hpp"
#include "plan/draft.hpp"

#include <vector>

namespace acc::launcher {

/// Draft of a plan with the selected hosts.
struct DeepSpeedDraft : Draft {
  using Draft::Draft;

  std::vector<Host> hosts;  ///< hosts of the job with their selected slots, by machine rank
  /// Set if another acclaunch started this one. It has selected the hosts and assigned the rank.
  std::optional<JobEnvironment> place;
  bool file_names_hosts = false;  ///< `hosts` is from a hostfile or from that acclaunch
  int world_size = 0;             ///< number of workers on all hosts

  [[nodiscard]] const Host& this_host() const {
    return hosts[static_cast<std::size_t>(plan.layout.machine_rank)];
  }
};

/// Throws Error(config) if two flags select the same resource in different ways.
void check_contradictions(const plugins::Settings& settings);

/// Sets `draft.hosts`: the machines and slots of the job. Throws Error(config).
void choose_hosts(DeepSpeedDraft& draft);

/// True if this process starts the launchers on the hosts.
bool starts_machines(const DeepSpeedDraft& draft);

/// Determines the rank of this machine and the number of its workers. Throws Error(config).
void find_this_machine(DeepSpeedDraft& draft);

/// Throws Error(device) if this machine has fewer GPUs than its selected slots need.
void check_slots(const DeepSpeedDraft& draft);

/// True if CUDA_VISIBLE_DEVICES selects the GPUs, because neither a hostfile nor a flag does.
bool variable_chooses(const DeepSpeedDraft& draft);

/// True if the workers of this machine run on GPUs.
bool uses_gpus(const DeepSpeedDraft& draft);

}  // namespace acc::launcher
