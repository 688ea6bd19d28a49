// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace acc::state_dict {

/// Starts a thread beside the training. It blocks all signals, so that they reach the program's own
/// threads. name: at most 15 characters.
template <typename Body>
std::thread background_thread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread([name, run = std::move(body)] {
      ::pthread_setname_np(::pthread_self(), name);
      run();
    });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

/// Lets the training go first: the calling thread gets what it leaves of the cores and of the disk.
/// Failures are ignored: a sandbox may refuse both.
void step_back() noexcept;

}  // namespace acc::state_dict
