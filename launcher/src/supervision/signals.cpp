#include "supervision/signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <initializer_list>

namespace acc::launcher {

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
  ::fcntl(guardian_, F_SETOWN, ::getpid());
  ::fcntl(guardian_, F_SETSIG, SIGTERM);
  ::fcntl(guardian_, F_SETFL, ::fcntl(guardian_, F_GETFL) | O_ASYNC);
  if (pollfd gone{guardian_, POLLIN, 0}; ::poll(&gone, 1, 0) == 1) {
    ::raise(SIGTERM);
  }
}

UsualSignals::~UsualSignals() {
  ::fcntl(guardian_, F_SETFL, ::fcntl(guardian_, F_GETFL) & ~O_ASYNC);
  ::sigprocmask(SIG_SETMASK, &blocked_, nullptr);
}

}  // namespace acc::launcher
