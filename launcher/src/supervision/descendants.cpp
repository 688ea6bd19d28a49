// SPDX-License-Identifier: Apache-2.0
#include "supervision/descendants.hpp"

#include "acc/base/unique_fd.hpp"
#include "supervision/process_state.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

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

/// Appends the numbers in a file, by few system calls. False if it cannot be opened.
bool append_numbers_in(const fs::path& path, std::vector<pid_t>& numbers) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> part;
  pid_t number = 0;
  for (ssize_t count = 0; file && (count = ::read(file.get(), part.data(), part.size())) > 0;) {
    for (const char c : std::span(part.data(), static_cast<std::size_t>(count))) {
      if (c >= '0' && c <= '9') {
        number = number * 10 + (c - '0');
      } else if (number != 0) {
        numbers.push_back(std::exchange(number, 0));
      }
    }
  }
  return static_cast<bool>(file);
}

/// Appends the children of `parent`. The kernel lists them per thread that forked them.
void append_children(pid_t parent, const fs::path& proc, std::vector<pid_t>& pids) {
  const fs::path tasks = proc / std::to_string(parent) / "task";
  std::error_code gone;  // set if the process ends while its files are read
  for (fs::directory_iterator task(tasks, gone), end; !gone && task != end; task.increment(gone)) {
    if (!append_numbers_in(task->path() / "children", pids) && fs::exists(task->path(), gone)) {
      append_processes_of(parent, proc, pids);
      return;
    }
  }
}

/// Reaps all children that have ended. True if one still runs.
bool reap_ended_children() noexcept {
  for (;;) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid == 0 || (pid < 0 && errno != EINTR)) {
      return pid == 0;
    }
  }
}

/// Lets this thread run before the processes that it ends, for the lifetime of the object, if the
/// system permits it. A nice value would not do: each session has the same share (sched(7)).
class Haste {
 public:
  Haste() noexcept {
    ::sched_getparam(0, &usual_);
    const sched_param first{.sched_priority = 1};
    ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &first);
  }
  ~Haste() { ::sched_setscheduler(0, policy_, &usual_); }
  Haste(const Haste&) = delete;
  Haste& operator=(const Haste&) = delete;

 private:
  int policy_ = ::sched_getscheduler(0);
  sched_param usual_{};
};

/// Sends signals to processes together with their process groups.
class Sender {
 public:
  explicit Sender(Spared spared)  // 1 would be all processes: kill(-1)
      : left_out_{-1, 0, 1, ::getpgrp(), spared.group} {
    if (spared.child != 0) {
      left_out_.insert(::getpgid(spared.child));
    }
  }
  void send(int signal, pid_t pid) const noexcept {
    const pid_t group = ::getpgid(pid);
    if (!left_out_.contains(group)) {
      ::kill(-group, signal);
    }
    ::kill(pid, signal);
  }

 private:
  std::set<pid_t> left_out_;
};

/// Returns the descendants as `descendants` does, and calls `on_found(pid)` with each before it
/// looks for the next one.
template <typename OnFound>
std::vector<pid_t> walk(pid_t ancestor, const fs::path& proc, pid_t spared, OnFound on_found) {
  std::vector<pid_t> pids;
  append_children(ancestor, proc, pids);
  std::erase(pids, spared);
  for (std::size_t i = 0; i < pids.size(); ++i) {  // breadth-first: `pids` grows in the loop
    on_found(pids[i]);
    append_children(pids[i], proc, pids);
  }
  return pids;
}

}  // namespace

std::vector<pid_t> descendants(pid_t ancestor, const fs::path& proc, pid_t spared) {
  return walk(ancestor, proc, spared, [](pid_t) {});
}

void kill_descendants(const Cgroup* cgroup, Spared spared) noexcept {
  if (cgroup != nullptr) {
    cgroup->kill();
  }
  const Sender sender(spared);
  walk(::getpid(), "/proc", spared.child, [&](pid_t pid) { sender.send(SIGKILL, pid); });
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

// Processes that fork on, each in a group of its own, may be as many as their user may have. Each
// one that is killed lets another one be forked, and they leave little CPU time to this process.
// One that is stopped does neither. So those that the first SIGKILL does not reach are stopped
// until no unknown one is found, and killed then, children first: the kernel continues a stopped
// process whose group has lost its parent.
bool end_descendants(const Cgroup* cgroup, Spared spared,
                     std::chrono::milliseconds limit) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  const Haste haste;
  const Sender sender(spared);
  std::set<pid_t> known;
  kill_descendants(cgroup, spared);
  while (reap_ended_children()) {
    bool knows_all = true;
    const std::vector<pid_t> found = walk(::getpid(), "/proc", spared.child, [&](pid_t pid) {
      if (known.insert(pid).second) {
        knows_all = false;
        sender.send(SIGSTOP, pid);
      }
    });
    if (found.empty() && spared.child != 0) {
      break;  // only the spared child runs
    }
    const bool is_over = std::chrono::steady_clock::now() >= deadline;
    if (!knows_all && !is_over) {
      continue;
    }
    if (cgroup != nullptr) {
      cgroup->kill();
    }
    for (auto pid = found.rbegin(); pid != found.rend(); ++pid) {
      sender.send(SIGKILL, *pid);
    }
    if (is_over) {
      return false;
    }
    // SIGCHLD ends the wait when a killed process has ended. The pause of 20 ms is for a process
    // that was forked while /proc was read.
    const timespec pause{0, 20'000'000};
    ::sigtimedwait(&child_ended, nullptr, &pause);
  }
  return true;
}

}  // namespace acc::launcher::supervision
