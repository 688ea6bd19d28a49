// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"

#include <string>
#include <vector>

namespace acc::launcher::plan {

/// Parses names of signals joined by commas, `SIGTERM,SIGUSR1`. Throws Error(config) for an unknown
/// signal, and for SIGKILL, SIGSTOP and SIGCHLD.
std::vector<int> read_signals(const Sourced<std::string>& given);

/// Returns the name of a signal, `SIGTERM`, or its number if it has no name.
std::string signal_word(int signal);

}  // namespace acc::launcher::plan
