// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/program.hpp"

#include <csignal>
#include <fstream>
#include <string>
#include <thread>

namespace acc::test {

/// Script of a worker with two children, one of them in its own session. Each process prints its
/// process ID.
inline const std::string kFamily = R"(
  setsid sh -c 'echo "pid=$$ end"; exec sleep 1000' &
  sh -c 'echo "pid=$$ end"; exec sleep 1000' &
  echo "pid=$$ end"
  wait)";
inline constexpr int kFamilySize = 3;

/// Returns the only child of a process.
inline pid_t child_of(pid_t parent) {
  const std::string pid = std::to_string(parent);
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

inline pid_t keeper_of(const Program& guardian) {
  return child_of(guardian.pid());
}

inline pid_t supervisor_of(const Program& guardian) {
  return child_of(keeper_of(guardian));
}

/// Waits until the process has stopped or ended.
inline void await_stop(pid_t pid) {
  const std::string file = "/proc/" + std::to_string(pid) + "/stat";
  std::string word;
  for (char state = 0; state != 'T' && state != 'Z';) {
    std::ifstream stat(file);
    if (!(stat >> word >> word >> state)) {
      return;
    }
    std::this_thread::yield();  // polls: only the parent is notified
  }
}

inline void stop(pid_t pid) {
  ::kill(pid, SIGSTOP);
  await_stop(pid);
}

}  // namespace acc::test
