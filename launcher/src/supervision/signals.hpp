#pragma once

#include <sys/types.h>

#include <csignal>

namespace acc::launcher {

/// A signal on its way from the guardian to the supervisor.
struct PassedSignal {
  int number = 0;
  /// The kernel sent it to the launcher's whole process group: typed at the terminal, or the
  /// terminal has hung up. A worker of that group has it already.
  bool from_terminal = false;

  /// As sigwaitinfo() and signalfd give it.
  static PassedSignal received(int number, int code, int value) noexcept;
  /// Sends it to another process of this launcher.
  void pass_on(pid_t process) const noexcept;
};

/// Ends this process by SIGINT, as a shell expects of a program that was interrupted: only then
/// does it end its loop as well.
[[noreturn]] void die_of_interrupt() noexcept;

/// The signals that guardian, keeper and supervisor take over: all that can be caught, but for
/// those that tell of a fault in the process itself and those that were ignored when it was started
/// (nohup).
sigset_t handled_signals() noexcept;

/// While it lives, signals have their usual effect on this process, which has nothing yet to end
/// with it, and SIGTERM comes as soon as `guardian`, a socket, can be read from. What came before
/// has its effect at once.
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

/// Ends a job gracefully: SIGTERM, SIGINT, SIGHUP, SIGQUIT.
constexpr bool is_stop_signal(int signal) noexcept {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

/// Concerns only the process that gets it, so that it is not passed on.
constexpr bool is_own_signal(int signal) noexcept {
  return signal == SIGCHLD || signal == SIGPIPE || signal == SIGTTIN || signal == SIGTTOU;
}

}  // namespace acc::launcher
