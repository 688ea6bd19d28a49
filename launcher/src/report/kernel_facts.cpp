// SPDX-License-Identifier: Apache-2.0
#include "report/kernel_facts.hpp"

#include "report/words.hpp"

#include <sys/statvfs.h>

#include <csignal>

namespace acc::launcher::report {
namespace {

/// Returns the usual cause of a signal that the kernel sends; empty if there are several. Libraries
/// for shared memory get SIGBUS when they write to a file in a full /dev/shm.
std::string usual_reason(int signal, const std::filesystem::path& root) {
  struct statvfs shared {};
  switch (signal) {
    case SIGBUS:
      return ::statvfs((root / "dev/shm").c_str(), &shared) != 0
                 ? ""
                 : "perhaps /dev/shm was full; its size is " +
                       binary_size(static_cast<std::int64_t>(shared.f_blocks * shared.f_frsize));
    case SIGXCPU: return "it exceeded the limit on CPU time (ulimit -t)";
    case SIGXFSZ: return "it exceeded the limit on the size of a file (ulimit -f)";
    case SIGSYS: return "it made a system call that a seccomp filter forbids";
    default: return {};
  }
}

/// Joins two phrases, either of which may be empty.
std::string joined(const std::string& one, const std::string& other) {
  return one.empty() || other.empty() ? one + other : one + "; " + other;
}

}  // namespace

std::string KernelFacts::cause(const supervision::WorkerRecord& worker,
                               const std::string& working_directory) const {
  const bool was_killed = worker.end && worker.end->kind == supervision::ProcessEnd::Kind::killed;
  if (!worker.stuck.empty() || !was_killed || worker.told_to_end) {
    return worker.stuck;
  }
  const int signal = worker.end->value;
  if (worker.got_passed_signal) {
    return "acclaunch got " + supervision::signal_name(signal) + " and passed it on to all workers";
  }
  return signal == SIGKILL
             ? oom_kills_.cause(worker.pid, worker.peak_memory)
             : joined(usual_reason(signal, root_), core_dumps_.cause(worker, working_directory));
}

}  // namespace acc::launcher::report
