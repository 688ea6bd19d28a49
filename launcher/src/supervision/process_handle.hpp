// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "spawn/user.hpp"

#include <sys/types.h>

#include <optional>
#include <string>

namespace acc::launcher::supervision {
/// A process of any user. The kernel gives its number to another process when it has ended; what
/// was read by that number belongs to this process if `is_alive` is true afterwards.
class ProcessHandle {
 public:
  /// Opens a process; empty (false) if it does not exist.
  explicit ProcessHandle(pid_t pid);
  explicit operator bool() const noexcept { return static_cast<bool>(folder_); }

  /// True if the process has not been reaped since.
  [[nodiscard]] bool is_alive() const;
  /// Returns a file of its folder in /proc, up to 16 MiB of it; "" if it cannot be read.
  [[nodiscard]] std::string read(const char* file) const;
  /// Returns its root folder as an O_PATH descriptor; empty if that is not permitted.
  [[nodiscard]] UniqueFd root() const;
  /// True if it sees the files of this process: the same mounts, and the same root folder.
  [[nodiscard]] bool sees_own_files() const;
  /// Returns the user who has started it and who decides what it does. Nothing for a program with
  /// the rights of another user than its caller (setuid, setgid): its variables are the caller's.
  [[nodiscard]] std::optional<spawn::User> user() const;

 private:
  UniqueFd folder_;
};

/// Returns a descriptor that becomes readable when `child`, a child of this process, has ended. The
/// child is not reaped. The descriptor is a pidfd, or, where pidfd_open() is not available (Linux
/// before 5.3, some sandboxes), a pipe that a waiting thread closes. Throws Error(process).
UniqueFd watch_end_of(pid_t child);

}  // namespace acc::launcher::supervision
