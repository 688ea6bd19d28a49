#include "report/kernel_facts.hpp"

#include "report/words.hpp"

#include <sys/statvfs.h>

#include <csignal>

namespace acc::launcher {
namespace {

/// Why the kernel sends a signal that has one usual reason.
std::string usual_reason(int signal, const std::filesystem::path& root) {
  struct statvfs shared {};
  switch (signal) {
    case SIGBUS:
      return ::statvfs((root / "dev/shm").c_str(), &shared) != 0
                 ? ""
                 : "perhaps /dev/shm was full, which holds " +
                       binary_size(static_cast<std::int64_t>(shared.f_blocks * shared.f_frsize));
    case SIGXCPU: return "its limit of CPU time (ulimit -t) is over";
    case SIGXFSZ: return "a file went over the limit of its size (ulimit -f)";
    case SIGSYS: return "it made a system call that a filter forbids (seccomp)";
    default: return {};
  }
}

std::string joined(const std::string& one, const std::string& other) {
  return one.empty() || other.empty() ? one + other : one + "; " + other;
}

}  // namespace

std::string KernelFacts::cause(const WorkerRecord& worker,
                               const std::string& working_directory) const {
  const bool was_killed = worker.end && worker.end->kind == ProcessEnd::Kind::killed;
  if (!worker.stuck.empty() || !was_killed || worker.told_to_end) {
    return worker.stuck;
  }
  const int signal = worker.end->value;
  if (worker.got_passed_signal) {
    return "acclaunch got " + signal_name(signal) + " and passed it on to all workers";
  }
  return signal == SIGKILL
             ? oom_kills_.cause(worker.pid, worker.peak_memory)
             : joined(usual_reason(signal, root_), core_dumps_.cause(worker, working_directory));
}

}  // namespace acc::launcher
