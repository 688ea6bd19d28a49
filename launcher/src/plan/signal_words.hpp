#pragma once

#include "plan/given.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// Names of signals joined by commas, `SIGTERM,SIGUSR1`. Throws Error(config).
std::vector<int> read_signals(const Given& given);

/// `SIGTERM`.
std::string signal_word(int signal);

}  // namespace acc::launcher
