// SPDX-License-Identifier: Apache-2.0
#include "output/worker_targets.hpp"

#include <set>

namespace acc::launcher::output {

std::size_t descriptors_of(const std::vector<WorkerTargets>& workers) {
  std::size_t sum = 0;
  std::set<std::string> shared_files;
  for (const WorkerTargets& worker : workers) {
    for (const StreamTarget* target : {&worker.out, &worker.err}) {
      sum +=
          (target->console || !target->file.empty() ? 1U : 0U) + (target->file.empty() ? 0U : 1U);
      if (target->console && !target->filter.words.empty()) {
        shared_files.insert(target->filter.file);
      }
    }
  }
  return sum + shared_files.size();
}

}  // namespace acc::launcher::output
