#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

namespace acc::launcher {

/// A control group (version 2) for the processes of one job, which nothing they do gets them out
/// of. Copies of it in forked processes mean the same group.
class Cgroup {
 public:
  /// Makes a group of that name below the one this process is in. Empty where that is not
  /// permitted or there is no such file system: nobody depends on it.
  static std::optional<Cgroup> make(const std::string& name);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// A copy of this process that begins in the group, or outside where that is not permitted. As
  /// fork() returns; the child may only call what a signal handler may, and has to exec.
  [[nodiscard]] pid_t fork_into() const noexcept;

  /// SIGKILL to all in it, at one stroke since Linux 5.14: a process that forks all the time does
  /// not slip through.
  void kill() const noexcept;

  /// False while there are processes in it.
  bool remove() const noexcept;

 private:
  Cgroup(std::filesystem::path path, UniqueFd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}

  std::filesystem::path path_;
  UniqueFd directory_;
};

/// The name of a process's group, "/user.slice", as its /proc/PID/cgroup has it: that of version 2,
/// or of version 1 with this controller. Empty: it has none.
std::string cgroup_name(const std::filesystem::path& cgroup, const std::string& controller = "");

/// Where the group of that name is in the file system, by /proc/PID/mountinfo; empty: nowhere.
std::filesystem::path cgroup_folder(const std::filesystem::path& mountinfo, std::string name,
                                    const std::string& controller = "");

}  // namespace acc::launcher
