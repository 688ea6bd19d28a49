// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <csignal>

namespace acc::launcher::supervision {

/// A signal that guardian and keeper pass on to the supervisor.
struct PassedSignal {
  int number = 0;
  /// True if the kernel sent the signal to the guardian's whole process group, because a key was
  /// pressed (Ctrl-C, Ctrl-Z) or the terminal hung up. A worker in that group got it directly.
  bool from_terminal = false;

  /// Builds it from the fields si_signo, si_code and si_value of sigwaitinfo() or signalfd.
  static PassedSignal received(int number, int code, int value) noexcept;
  /// Sends the signal to another process of this launcher, with its origin as the signal's value.
  void pass_on(pid_t process) const noexcept;
};

/// Ends this process by SIGINT. A shell script stops at Ctrl-C only if the program that it waits
/// for died of SIGINT; an exit code of 130 lets a shell loop go on.
[[noreturn]] void die_of_interrupt() noexcept;

/// Returns the signals that guardian, keeper and supervisor block and handle: all signals except
/// those that report a fault of the process itself (SIGSEGV, SIGABRT, …) and those that were
/// ignored when the program was started (nohup ignores SIGHUP).
sigset_t handled_signals() noexcept;

/// Gives signals their default effect on the supervisor process for the lifetime of the object, for
/// the time in which there is no worker to end. Signals that are pending take effect at once. The
/// process also gets SIGTERM when `guardian`, the socket `Guard::alive`, becomes readable, because
/// the keeper or guardian has died.
class UsualSignals {
 public:
  explicit UsualSignals(int guardian) noexcept;
  ~UsualSignals();
  UsualSignals(const UsualSignals&) = delete;
  UsualSignals& operator=(const UsualSignals&) = delete;

 private:
  int guardian_;
  sigset_t blocked_{};
};

/// True if the signal requests a graceful end of the job.
constexpr bool is_stop_signal(int signal) noexcept {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

/// True if the signal concerns only the process that receives it, and is not passed on.
constexpr bool is_own_signal(int signal) noexcept {
  return signal == SIGCHLD || signal == SIGPIPE || signal == SIGTTIN || signal == SIGTTOU;
}

}  // namespace acc::launcher::supervision
