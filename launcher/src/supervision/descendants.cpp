// SPDX-License-Identifier: Apache-2.0
#include "supervision/descendants.hpp"

#include "supervision/process_state.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace acc::launcher::supervision {
namespace {

namespace fs = std::filesystem;

/// Appends the children of `parent`, found by reading the parent's pid of every process.
void append_processes_of(pid_t parent, const fs::path& proc, std::vector<pid_t>& pids) {
  std::error_code gone;
  for (fs::directory_iterator process(proc, gone), end; !gone && process != end;
       process.increment(gone)) {
    const pid_t pid = std::atoi(process->path().filename().c_str());  // 0: not a process
    const auto state = pid > 0 ? process_state(pid, proc) : std::nullopt;
    if (state && state->parent == parent) {
      pids.push_back(pid);
    }
  }
}

/// Appends the children of `parent`. The kernel lists them per thread that forked them.
void append_children(pid_t parent, const fs::path& proc, std::vector<pid_t>& pids) {
  const fs::path tasks = proc / std::to_string(parent) / "task";
  std::error_code gone;  // set if the process ends while its files are read
  for (fs::directory_iterator task(tasks, gone), end; !gone && task != end; task.increment(gone)) {
    std::ifstream children(task->path() / "children");
    if (!children && fs::exists(task->path(), gone)) {
      append_processes_of(parent, proc, pids);
      return;
    }
    for (pid_t pid = 0; children >> pid;) {
      pids.push_back(pid);
    }
  }
}

/// Reaps all children that have ended. True if a child other than `spared` is still running.
bool reap_ended_children(pid_t spared) noexcept {
  for (;;) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid == 0) {
      return spared == 0 || !descendants(::getpid(), "/proc", spared).empty();
    }
    if (pid < 0 && errno != EINTR) {
      return false;
    }
  }
}

}  // namespace

std::vector<pid_t> descendants(pid_t ancestor, const fs::path& proc, pid_t spared) {
  std::vector<pid_t> pids;
  append_children(ancestor, proc, pids);
  std::erase(pids, spared);
  for (std::size_t i = 0; i < pids.size(); ++i) {  // breadth-first: `pids` grows in the loop
    append_children(pids[i], proc, pids);
  }
  return pids;
}

void kill_descendants(const Cgroup* cgroup, pid_t spared) noexcept {
  if (cgroup != nullptr) {
    cgroup->kill();
  }
  for (const pid_t pid : descendants(::getpid(), "/proc", spared)) {
    ::kill(pid, SIGKILL);
  }
}

void reap_orphans(std::span<const pid_t> workers) noexcept {
  std::vector<pid_t> children;
  append_children(::getpid(), "/proc", children);
  for (const pid_t pid : children) {
    if (std::find(workers.begin(), workers.end(), pid) == workers.end()) {
      ::waitpid(pid, nullptr, WNOHANG);
    }
  }
}

bool end_descendants(const Cgroup* cgroup, std::chrono::milliseconds limit, pid_t spared) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  while (reap_ended_children(spared)) {
    kill_descendants(cgroup, spared);
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    // SIGCHLD ends the wait when a killed process has ended. The pause of 20 ms is for a process
    // that was forked while /proc was read and therefore was not killed in this iteration.
    const timespec pause{0, 20'000'000};
    ::sigtimedwait(&child_ended, nullptr, &pause);
  }
  return true;
}

}  // namespace acc::launcher::supervision
