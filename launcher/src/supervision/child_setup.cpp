// SPDX-License-Identifier: Apache-2.0
#include "supervision/child_setup.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>

namespace acc::launcher::supervision {
namespace {

constexpr std::size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

/// Sets close-on-exec on all descriptors from `first` on: Asio opens its sockets without the flag.
void close_on_exec_from(int first) noexcept {
  if (::syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    for (int fd = first; fd < ::getdtablesize(); ++fd) {  // before Linux 5.11
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
}

std::vector<unsigned long> mask_of(const std::vector<int>& numbers) {
  std::vector<unsigned long> mask;
  for (const int number : numbers) {
    const auto bit = static_cast<std::size_t>(number);
    mask.resize(std::max(mask.size(), bit / kBitsOfWord + 1));
    mask[bit / kBitsOfWord] |= 1UL << bit % kBitsOfWord;
  }
  return mask;
}

}  // namespace

ChildSetup::ChildSetup(const WorkerSpec& spec, const std::optional<rlimit>& descriptors)
    : parent_(::getpid()),
      process_group_(spec.process_group),
      reports_(spec.reports),
      numa_node_(spec.numa_node),
      descriptors_(descriptors),
      core_mask_(mask_of(spec.cores)) {}

void ChildSetup::become_worker() const noexcept {
  if (::setpgid(0, process_group_) != 0) {
    ::setpgid(0, 0);  // that group has no process any more
  }
  // The kernel kills the worker when the launcher's thread dies, even by SIGKILL.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent_) {
    ::_exit(128 + SIGKILL);  // the launcher died before the line above took effect
  }
  bind();
  close_on_exec_from(STDERR_FILENO + 1);
  if (reports_ >= 0) {
    ::fcntl(reports_, F_SETFD, 0);
  }
  if (descriptors_) {
    ::setrlimit(RLIMIT_NOFILE, &*descriptors_);
  }
  // Ignored signals and the signal mask survive exec, so the launcher's settings are undone.
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Binds the worker to its cores and NUMA node. Errors are ignored, because a container's seccomp
/// profile may forbid both calls, and a worker without binding is only slower.
void ChildSetup::bind() const noexcept {
  if (!core_mask_.empty()) {
    ::syscall(SYS_sched_setaffinity, 0, core_mask_.size() * sizeof(unsigned long),
              core_mask_.data());
  }
  if (numa_node_ >= 0 && static_cast<std::size_t>(numa_node_) < kBitsOfWord) {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
    const unsigned long node = 1UL << numa_node_;
    // set_mempolicy() decrements the size of the mask before use (get_nodes() in mm/mempolicy.c).
    ::syscall(SYS_set_mempolicy, kPreferred, &node, kBitsOfWord + 1);
  }
}

}  // namespace acc::launcher::supervision
