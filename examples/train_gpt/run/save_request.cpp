// SPDX-License-Identifier: Apache-2.0
#include "run/save_request.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

namespace train_gpt {

// The constructor blocks both signals in the calling thread, and threads that start later inherit
// the mask, so only the watcher's sigwait receives them.
SaveRequest::SaveRequest() {
  ::sigemptyset(&signals_);
  ::sigaddset(&signals_, SIGUSR1);
  ::sigaddset(&signals_, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  watcher_ = std::thread([this] { watch(); });
}

SaveRequest::~SaveRequest() {
  is_over_ = true;
  // Wakes the watcher if it is in sigwait. is_over_ tells it that this is no request.
  ::pthread_kill(watcher_.native_handle(), SIGUSR1);
  watcher_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void SaveRequest::watch() {
  while (true) {
    int signal = 0;
    ::sigwait(&signals_, &signal);
    if (is_over_) {
      return;
    }
    (signal == SIGTERM ? asked_to_end_ : asked_to_save_) = true;
    if (signal == SIGTERM && !has_begun_) {
      end_by(SIGTERM);
    }
  }
}

void SaveRequest::training_begins() {
  has_begun_ = true;
}

int SaveRequest::agreed(acc::Runtime& runtime) const {
  // Ordered by precedence, so that the maximum over all ranks is the decision.
  const std::array own = {asked_to_end_ ? 2.0 : asked_to_save_ ? 1.0 : 0.0};
  const std::vector<double> all = runtime.all_gather(own);
  const double most = *std::max_element(all.begin(), all.end());
  return most == 2.0 ? SIGTERM : most == 1.0 ? SIGUSR1 : 0;
}

void SaveRequest::end_by(int signal) {
  sigset_t set{};
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::signal(signal, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
  std::abort();  // not reached: the default action of the signal ends the process
}

}  // namespace train_gpt
