// SPDX-License-Identifier: Apache-2.0
#include "supervision/signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <initializer_list>

namespace acc::launcher::supervision {
namespace {

/// Value (si_value) of a passed-on signal that came from the terminal: "tty" in ASCII.
constexpr int kFromTerminal = 0x747479;

/// True for signals that the kernel sends to the terminal's foreground process group.
constexpr bool is_terminals(int signal) noexcept {
  return signal == SIGINT || signal == SIGQUIT || signal == SIGTSTP || signal == SIGHUP ||
         signal == SIGCONT || signal == SIGWINCH;
}

}  // namespace

// SI_KERNEL marks the original signal, which the guardian receives; SI_QUEUE a passed-on one.
PassedSignal PassedSignal::received(int number, int code, int value) noexcept {
  return {number, (code == SI_KERNEL && is_terminals(number)) ||
                      (code == SI_QUEUE && value == kFromTerminal)};
}

void PassedSignal::pass_on(pid_t process) const noexcept {
  ::sigqueue(process, number, {.sival_int = from_terminal ? kFromTerminal : 0});
}

void die_of_interrupt() noexcept {
  std::signal(SIGINT, SIG_DFL);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::raise(SIGINT);
  ::sigprocmask(SIG_UNBLOCK, &interrupt, nullptr);
  ::_exit(128 + SIGINT);  // pid 1 of a container ignores signals with default action
}

sigset_t handled_signals() noexcept {
  sigset_t signals;
  sigfillset(&signals);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&signals, fault);
  }
  for (int signal = 1; signal < SIGRTMAX; ++signal) {
    struct sigaction now {};
    if (!is_own_signal(signal) && ::sigaction(signal, nullptr, &now) == 0 &&
        now.sa_handler == SIG_IGN) {
      sigdelset(&signals, signal);
    }
  }
  return signals;
}

UsualSignals::UsualSignals(int guardian) noexcept : guardian_(guardian) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, &blocked_);
  // Signal-driven I/O (fcntl(2)): the kernel sends SIGTERM when the socket becomes readable.
  ::fcntl(guardian_, F_SETOWN, ::getpid());
  ::fcntl(guardian_, F_SETSIG, SIGTERM);
  ::fcntl(guardian_, F_SETFL, ::fcntl(guardian_, F_GETFL) | O_ASYNC);
  if (pollfd gone{guardian_, POLLIN, 0}; ::poll(&gone, 1, 0) == 1) {
    ::raise(SIGTERM);  // it was readable before O_ASYNC was set
  }
}

UsualSignals::~UsualSignals() {
  ::fcntl(guardian_, F_SETFL, ::fcntl(guardian_, F_GETFL) & ~O_ASYNC);
  ::sigprocmask(SIG_SETMASK, &blocked_, nullptr);
}

}  // namespace acc::launcher::supervision
