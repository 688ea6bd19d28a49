// SPDX-License-Identifier: Apache-2.0
#include "plan/signal_words.hpp"

#include "acc/plugins/settings.hpp"

#include <csignal>
#include <cstring>

namespace acc::launcher::plan {

std::string signal_word(int signal) {
  const char* word = ::sigabbrev_np(signal);
  return word == nullptr ? std::to_string(signal) : "SIG" + std::string(word);
}

std::vector<int> read_signals(const Sourced<std::string>& given) {
  std::vector<int> signals;
  for (const std::string_view entry : entries_of(given.value)) {
    const std::string_view word = trimmed(entry);
    int signal = 1;
    while (signal < NSIG && word != signal_word(signal)) {
      ++signal;
    }
    if (signal == NSIG || signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD) {
      throw bad_value(given, "signals that a process can handle, as in SIGTERM,SIGUSR1");
    }
    signals.push_back(signal);
  }
  return signals;
}

}  // namespace acc::launcher::plan
