#pragma once

#include "cluster/place.hpp"
#include "plan/given.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// What a launcher at its place in a job of some manager has to do.
enum class Part {
  machine,  ///< start this machine's workers: there is one launcher a machine
  worker,   ///< supervise one worker: there is one launcher a rank
  starter,  ///< start the launchers of all machines
};

/// How many machines the job has, as far as the manager tells.
std::optional<int> num_nodes(const ClusterPlace& place);

/// `num_processes`: what a flag or file says of it; empty text: nothing. As many tasks as machines
/// are launchers of machines, more are workers. Throws Error(config) where the tasks are neither,
/// and where they are several on a machine but not one for each worker.
Part part_in(const ClusterPlace& place, const Given& num_processes);

/// Part::worker: its seat. Throws Error(config) where the manager does not say which one it is.
Seat seat_in(const ClusterPlace& place);

/// Workers or tasks by machine rank, where the job asked for several on a machine; else empty.
std::vector<int> wished_workers(const ClusterPlace& place);

}  // namespace acc::launcher
