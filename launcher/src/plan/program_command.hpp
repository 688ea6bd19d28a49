#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/plugins/settings.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// The command of every worker: `*.py` and modules under `$PYTHON_EXEC` or python3, anything else
/// itself. A bare name is looked up in PATH, then beside acclaunch. Throws Error(not_found) or
/// Error(invalid_argument) when it could not be started.
std::vector<std::string> program_command(const Flags& flags, const plugins::Settings& settings,
                                         const plugins::Environment& environment,
                                         const HostFacts& facts);

}  // namespace acc::launcher
