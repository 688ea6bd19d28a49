// SPDX-License-Identifier: Apache-2.0
#include "supervision/descriptors.hpp"

#include "acc/base/error.hpp"
#include "output/worker_targets.hpp"
#include "supervision/worker_process.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>

namespace acc::launcher::supervision {
namespace {

constexpr rlim_t kEnough = 65536;
/// Descriptors of a launcher without workers: event loop, signalfd, terminal, a listening store,
/// and files in /proc while they are read.
constexpr std::size_t kOfLauncher = 24;
/// Descriptors per remote shell client: pipes to its stdin and from its stdout and stderr, and a
/// pidfd.
constexpr std::size_t kOfClient = 4;
/// Descriptors open while one worker is being started: the worker's ends of two pipes, /dev/null.
constexpr std::size_t kOfStart = 3;
/// Descriptors open for a short time: files in /proc, a file of the report.
constexpr std::size_t kInPassing = 4;

rlimit limit_now() noexcept {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

std::size_t open_now() {
  std::error_code unknown;
  const std::filesystem::directory_iterator all("/proc/self/fd", unknown);
  return unknown ? 0 : static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Raises the soft limit to `needed` if it is lower. Throws Error(config) if the hard limit is.
void require(std::size_t needed, const std::string& who, const std::string& of_what) {
  rlimit limit = limit_now();
  if (needed <= limit.rlim_cur) {
    return;
  }
  if (needed <= limit.rlim_max) {
    limit.rlim_cur = needed;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    return;
  }
  const std::string count = std::to_string(needed);
  throw Error(Errc::not_supported,
              who + " needs " + count + " file descriptors, but the hard limit is " +
                  std::to_string(limit.rlim_max) + "; raise it (as root: ulimit -Hn " + count +
                  ", or nofile in /etc/security/limits.conf), or start fewer " + of_what);
}

}  // namespace

DescriptorLimit::DescriptorLimit() : original_(limit_now()) {
  rlimit raised = original_;
  raised.rlim_cur = std::max(original_.rlim_cur, std::min(original_.rlim_max, kEnough));
  ::setrlimit(RLIMIT_NOFILE, &raised);
  require(kOfLauncher, "acclaunch", "workers");
}

DescriptorLimit::~DescriptorLimit() {
  ::setrlimit(RLIMIT_NOFILE, &original_);
}

void require_descriptors(const std::vector<WorkerSpec>& workers, std::size_t others) {
  std::vector<output::WorkerTargets> targets;
  for (const WorkerSpec& worker : workers) {
    if (!worker.inherits_output) {
      targets.push_back(worker.targets);
    }
  }
  const std::size_t more = workers.size() + output::descriptors_of(targets) + kOfStart + kInPassing;
  require(
      open_now() + more + others,
      "a job of " + std::to_string(workers.size()) + (workers.size() == 1 ? " worker" : " workers"),
      "workers");
}

void require_descriptors_for_clients(std::size_t count) {
  require(open_now() + count * kOfClient + kOfStart + kInPassing,
          "starting " + std::to_string(count) + " machines", "machines");
}

}  // namespace acc::launcher::supervision
