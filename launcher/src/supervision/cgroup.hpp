// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace acc::launcher::supervision {

/// A control group (cgroup version 2) that contains the workers of one attempt and all processes
/// they start. A worker cannot leave it by a new session or by double forking. The group is an
/// optimization: where the cgroup file system is missing or not writable, all operations do
/// nothing, and the launcher finds the processes through /proc instead. A copy in a forked process
/// refers to the same group.
class Cgroup {
 public:
  /// Describes the group `name` below this process's own group. Does not create it.
  explicit Cgroup(const std::string& name);

  /// Creates the group. Each attempt needs a new one: on Linux 6.18, a group that was killed once
  /// also kills every process created in it later.
  void make() noexcept;

  /// Forks this process, and puts the child into the group if there is one. Returns what fork()
  /// returns. The child may call async-signal-safe functions only, and must call exec or _exit.
  [[nodiscard]] pid_t fork_into() const noexcept;

  /// The group's folder, for a process that is to join it by its cgroup.procs; -1: there is none.
  [[nodiscard]] int directory() const noexcept { return directory_.get(); }

  /// Sends SIGKILL to all processes in the group. Since Linux 5.14 the kernel does this atomically
  /// (cgroup.kill), so that a process that forks continuously cannot escape.
  void kill() const noexcept;

  /// Removes the group and the groups below it. Does nothing while there are processes in it.
  void remove() noexcept;

 private:
  [[nodiscard]] bool lets_live() const noexcept;

  std::filesystem::path path_;  ///< empty if there is no cgroup file system
  UniqueFd directory_;          ///< open from `make` to `remove`, in the process that called `make`
};

/// Returns the name of a process's group, such as "/user.slice", read from the file
/// /proc/PID/cgroup. `controller`: the controller of a version 1 hierarchy; empty selects
/// version 2. Returns an empty string if the process is in no such group.
std::string cgroup_name(const std::filesystem::path& cgroup, const std::string& controller = "");

/// Returns the folder of the group `name`, found in the mount table /proc/PID/mountinfo. Returns
/// an empty path if the group is not visible in any mounted cgroup file system.
std::filesystem::path cgroup_folder(const std::filesystem::path& mountinfo, std::string name,
                                    const std::string& controller = "");

}  // namespace acc::launcher::supervision
