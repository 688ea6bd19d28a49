// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/job_environment.hpp"

#include <string>

namespace acc::launcher::test {

template <typename T>
std::string shown(const std::optional<Sourced<T>>& said) {
  return said ? std::to_string(said->value) : "?";
}

inline std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ",") + word;
  }
  return text;
}

/// Formats a place as `Slurm job 1, step 0: task 0/2, local 0/1, node 0/2 of node0,node1 with 1,1;
/// node0:15000`, with `?` for unknown numbers, `script` instead of the task's numbers for a script,
/// and the notices at the end.
inline std::string shown(const std::optional<cluster::JobEnvironment>& place) {
  if (!place) {
    return "nothing";
  }
  std::string text = place->manager.job + ": ";
  text += place->is_task
              ? "task " + shown(place->rank) + "/" + shown(place->num_tasks) + ", local " +
                    shown(place->local_rank) + "/" + shown(place->local_size)
              : "script";
  text += ", node " + shown(place->node_rank) + "/" + shown(place->num_nodes);
  text += place->hosts ? " of " + joined(place->hosts->value) : "";
  if (place->tasks_per_node) {
    std::vector<std::string> counts;
    for (const int count : place->tasks_per_node->value) {
      counts.push_back(std::to_string(count));
    }
    text += " with " + joined(counts);
  }
  text += "; " + (place->address ? place->address->value : "?") + ":" + shown(place->port) + " " +
          place->run_id.value;
  for (const std::string& notice : place->notices) {
    text += "; " + notice;
  }
  return text;
}

}  // namespace acc::launcher::test
