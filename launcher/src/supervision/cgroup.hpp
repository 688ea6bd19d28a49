#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace acc::launcher {

/// A control group (version 2) for the workers of one attempt, which nothing they do gets them out
/// of. Where that is not permitted, or there is no such file system, nothing happens: nobody
/// depends on it. Copies in forked processes mean the same group.
class Cgroup {
 public:
  /// Of that name, below the group this process is in. Makes nothing yet.
  explicit Cgroup(const std::string& name);

  /// Makes the group. To be done for each attempt: one that was killed kills all that are born into
  /// it later (seen with Linux 6.18).
  void make() noexcept;

  /// A copy of this process that begins in the group, or outside where there is none. As fork()
  /// returns; the child may only call what a signal handler may, and has to exec.
  [[nodiscard]] pid_t fork_into() const noexcept;

  /// SIGKILL to all in it, at one stroke since Linux 5.14: a process that forks all the time does
  /// not slip through.
  void kill() const noexcept;

  /// Nothing happens while there are processes in it.
  void remove() noexcept;

 private:
  [[nodiscard]] bool lets_live() const noexcept;

  std::filesystem::path path_;  ///< empty: there can be none
  UniqueFd directory_;          ///< once it is made, by this process
};

/// The name of a process's group, "/user.slice", as its /proc/PID/cgroup has it: that of version 2,
/// or of version 1 with this controller. Empty: it has none.
std::string cgroup_name(const std::filesystem::path& cgroup, const std::string& controller = "");

/// Where the group of that name is in the file system, by /proc/PID/mountinfo; empty: nowhere.
std::filesystem::path cgroup_folder(const std::filesystem::path& mountinfo, std::string name,
                                    const std::string& controller = "");

}  // namespace acc::launcher
