#pragma once

#include <string>

namespace acc::launcher {

/// How a process ended. Exit codes and signals are kept apart, since exit(9) is not SIGKILL.
struct ProcessEnd {
  enum class Kind { exited, killed, not_executed };

  Kind kind = Kind::exited;
  int value = 0;  ///< exit code, signal number, or the errno of the failed exec
  bool core_dumped = false;

  /// Decodes what waitpid() stored.
  static ProcessEnd from_wait_status(int wait_status) noexcept;

  [[nodiscard]] bool ok() const noexcept { return kind == Kind::exited && value == 0; }

  /// What a shell would give as `$?`: the exit code, 128 + signal, 127 for a program that is not
  /// there and 126 for one that cannot be executed.
  [[nodiscard]] int shell_status() const noexcept;

  /// As part of a sentence: "exited with code 3", "killed by SIGSEGV (signal 11), core dumped",
  /// "could not be executed: Permission denied".
  [[nodiscard]] std::string describe() const;

  bool operator==(const ProcessEnd&) const = default;
};

/// "SIGTERM" for 15, "signal 64" for one without a name.
std::string signal_name(int signal);

}  // namespace acc::launcher
