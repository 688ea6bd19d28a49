#include "child_setup.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>

namespace acc::launcher {
namespace {

constexpr std::size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

/// Asio's sockets are not close-on-exec.
void close_on_exec_from(int first) noexcept {
  if (::syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    for (int fd = first; fd < ::getdtablesize(); ++fd) {  // before Linux 5.11
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) {
    result.push_back(const_cast<char*>(string.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_strings(const WorkerSpec& spec) {
  std::vector<std::string> strings;
  strings.reserve(spec.environment.size());
  for (const auto& [name, value] : spec.environment) {
    strings.push_back(name + "=" + value);
  }
  return strings;
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

ChildSetup::ChildSetup(const WorkerSpec& spec, std::array<int, 3> streams)
    : spec_(spec),
      streams_(streams),
      parent_(::getpid()),
      takes_terminal_(streams[0] < 0 && ::isatty(STDIN_FILENO) == 1),
      environment_text_(environment_strings(spec)),
      arguments_(pointers(spec.command)),
      environment_(pointers(environment_text_)),
      core_mask_(mask_of(spec.cores)) {}

int ChildSetup::become_worker() const noexcept {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent_) {
    ::_exit(128 + SIGKILL);  // the launcher died before the line above took effect
  }
  if (takes_terminal_) {
    ::tcsetpgrp(STDIN_FILENO, ::getpid());  // SIGTTOU is still blocked
  }
  bind();
  const std::string& directory = spec_.working_directory;
  if (!take_streams() || (!directory.empty() && ::chdir(directory.c_str()) != 0)) {
    return errno;
  }
  close_on_exec_from(STDERR_FILENO + 1);
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(arguments_.front(), arguments_.data(), environment_.data());
  return errno;
}

bool ChildSetup::take_streams() const noexcept {
  std::array<int, 3> copies = {-1, -1, -1};  // above 2, so that none is overwritten before its turn
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (streams_[i] >= 0 && (copies[i] = ::fcntl(streams_[i], F_DUPFD_CLOEXEC, 3)) < 0) {
      return false;
    }
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i] >= 0 && ::dup2(copies[i], static_cast<int>(i)) < 0) {
      return false;
    }
  }
  return true;
}

/// Neither is worth a failed start: a sandbox may refuse both.
void ChildSetup::bind() const noexcept {
  if (!core_mask_.empty()) {
    ::syscall(SYS_sched_setaffinity, 0, core_mask_.size() * sizeof(unsigned long),
              core_mask_.data());
  }
  if (spec_.numa_node >= 0 && static_cast<std::size_t>(spec_.numa_node) < kBitsOfWord) {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
    const unsigned long node = 1UL << spec_.numa_node;
    ::syscall(SYS_set_mempolicy, kPreferred, &node, kBitsOfWord + 1);  // it counts one too many
  }
}

}  // namespace acc::launcher
