// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "cluster/job_environment.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::cluster {

/// Launcher role: the task of this launcher in a job of a job manager.
enum class LauncherRole {
  machine,          ///< one launcher per machine: start the workers of this machine
  worker,           ///< one launcher per rank: supervise a single worker
  remote_launcher,  ///< the job's script: start the launchers of all machines
};

/// Returns the number of machines of the job, or empty if the manager does not tell.
std::optional<int> num_nodes(const JobEnvironment& place);

/// Returns the launcher's role. If there are as many tasks as machines, each task launches a
/// machine's workers; if there are more, each task is one worker. `num_processes` is the requested
/// total with its origin, empty if not given. Throws Error(config) if there are fewer tasks than
/// machines, and if several tasks run on a machine but their number differs from `num_processes`.
LauncherRole launcher_role(const JobEnvironment& place, const Sourced<std::string>& num_processes);

/// Returns the rank slot of a launcher with LauncherRole::worker. Throws Error(config) if the
/// manager does not tell the rank or local rank.
RankSlot rank_slot_in(const JobEnvironment& place);

/// Returns the number of workers or tasks by machine rank if the job requested more than one on a
/// machine; else empty.
std::vector<int> wished_workers(const JobEnvironment& place);

}  // namespace acc::launcher::cluster
