// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace acc::launcher::supervision {

/// How a process ended. Exit codes and signals are separate, because exit(9) is not SIGKILL.
struct ProcessEnd {
  enum class Kind { exited, killed, not_executed };

  Kind kind = Kind::exited;
  int value = 0;  ///< exit code, signal number, or the errno of the failed exec
  bool core_dumped = false;

  /// Decodes what waitpid() stored.
  static ProcessEnd from_wait_status(int wait_status) noexcept;

  [[nodiscard]] bool ok() const noexcept { return kind == Kind::exited && value == 0; }

  /// The value of `$?` in a shell: the exit code, 128 + signal number, 127 for a program that does
  /// not exist, or 126 for one that cannot be executed.
  [[nodiscard]] int shell_status() const noexcept;

  /// Returns a phrase: "exited with code 3", "killed by SIGSEGV (signal 11), core dumped",
  /// "could not be executed: Permission denied".
  [[nodiscard]] std::string describe() const;

  bool operator==(const ProcessEnd&) const = default;
};

/// Returns "SIGTERM" for 15, or "signal 64" for a signal without a name.
std::string signal_name(int signal);

}  // namespace acc::launcher::supervision
