#include "supervision/descriptors.hpp"

#include "acc/base/error.hpp"
#include "supervision/worker_process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>

namespace acc::launcher {
namespace {

constexpr rlim_t kEnough = 65536;
/// The loop, signals, terminal, a listening store, and a look into /proc.
constexpr std::size_t kOfLauncher = 24;
/// While one worker is started: its ends of two pipes, /dev/null.
constexpr std::size_t kOfStart = 3;
/// A look into /proc, a file of the report.
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

/// A pipe, if the launcher reads it, and the file that it copies to.
std::size_t of_stream(const StreamTarget& target) {
  return target.console ? 1 + (target.file.empty() ? 0 : 1) : 0;
}

void require(std::size_t needed, const std::string& who) {
  const rlimit limit = limit_now();
  if (needed <= limit.rlim_cur) {
    return;
  }
  const std::string count = std::to_string(needed);
  throw Error(Errc::config,
              who + " needs " + count + " file descriptors, but the hard limit is " +
                  std::to_string(limit.rlim_max) + "; raise it (as root: ulimit -Hn " + count +
                  ", or nofile in /etc/security/limits.conf), or start fewer workers");
}

}  // namespace

DescriptorLimit::DescriptorLimit() : original_(limit_now()) {
  rlimit raised = original_;
  raised.rlim_cur = std::max(original_.rlim_cur, std::min(original_.rlim_max, kEnough));
  ::setrlimit(RLIMIT_NOFILE, &raised);
  require(kOfLauncher, "acclaunch");
}

DescriptorLimit::~DescriptorLimit() {
  ::setrlimit(RLIMIT_NOFILE, &original_);
}

std::size_t descriptors_for(const std::vector<WorkerSpec>& workers) {
  std::size_t sum = workers.size() + kOfStart + kInPassing;  // each worker's end is watched
  std::set<std::string> shared_files;
  for (const WorkerSpec& worker : workers) {
    if (!worker.inherits_output) {
      for (const StreamTarget& target : {worker.targets.out, worker.targets.err}) {
        sum += of_stream(target);
        if (!target.filter.words.empty()) {
          shared_files.insert(target.filter.file);
        }
      }
    }
  }
  return sum + shared_files.size();
}

void require_descriptors(std::size_t more, std::size_t num_workers) {
  require(open_now() + more,
          "a job of " + std::to_string(num_workers) + (num_workers == 1 ? " worker" : " workers"));
}

void fill_standard_streams() noexcept {
  int fd = 0;
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) {
    ::close(fd);
  }
}

}  // namespace acc::launcher
