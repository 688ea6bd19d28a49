#include "supervision/signals.hpp"

#include <sys/prctl.h>

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

UsualSignals::UsualSignals() noexcept {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, &blocked_);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

UsualSignals::~UsualSignals() {
  ::prctl(PR_SET_PDEATHSIG, 0);
  ::sigprocmask(SIG_SETMASK, &blocked_, nullptr);
}

}  // namespace acc::launcher
