// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/hostfile.hpp"
#include "cluster/job_environment.hpp"
#include "plan/draft.hpp"

#include <vector>

namespace acc::launcher::deepspeed_cli {

/// Hosts of the job with their selected slots.
struct JobHosts {
  std::vector<cluster::Host> hosts{};  ///< by machine rank; at least one
  bool file_names_hosts =
      false;  ///< they are from a hostfile or from the acclaunch that started us
};

// `remote_launcher`: the environment that the acclaunch which started this one has set, or nullptr.
// It has selected the hosts and assigned the rank.

/// Throws Error(config) if two flags select the same resource in different ways.
void check_contradictions(const settings::Settings& settings);

/// Returns the machines and slots of the job. Throws Error(config).
JobHosts choose_hosts(plan::Draft& draft, const cluster::JobEnvironment* remote_launcher);

/// True if this process starts the launchers on the hosts.
bool starts_machines(const plan::Draft& draft, const JobHosts& job,
                     const cluster::JobEnvironment* remote_launcher);

/// Determines the rank of this machine and the number of its workers. Throws Error(config).
RankLayout find_this_machine(const plan::Draft& draft, const JobHosts& job,
                             const cluster::JobEnvironment* remote_launcher);

/// Throws Error(device) if this machine has fewer GPUs than its selected slots need.
void check_slots(const plan::Draft& draft, const JobHosts& job, const cluster::Host& this_host);

/// Returns the number of workers on all hosts.
int world_size_of(const std::vector<cluster::Host>& hosts);

/// True if CUDA_VISIBLE_DEVICES selects the GPUs, because neither a hostfile nor a flag does.
bool variable_chooses(const plan::Draft& draft, bool file_names_hosts);

/// True if the workers of this machine run on GPUs.
bool uses_gpus(const plan::Draft& draft, bool file_names_hosts);

}  // namespace acc::launcher::deepspeed_cli
