#include "report/kernel_facts.hpp"

#include <csignal>

namespace acc::launcher {

std::string KernelFacts::cause(const WorkerRecord& worker,
                               const std::string& working_directory) const {
  if (!worker.stuck.empty()) {
    return worker.stuck;
  }
  if (worker.end == ProcessEnd{ProcessEnd::Kind::killed, SIGKILL}) {
    return worker.told_to_end ? "" : oom_kills_.cause(worker.pid, worker.peak_memory);
  }
  return core_dumps_.cause(worker, working_directory);
}

}  // namespace acc::launcher
