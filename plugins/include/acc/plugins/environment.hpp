#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <map>
#include <string>

namespace acc::plugins {

/// Names and values of environment variables; the launcher builds it, a worker reads it back.
using Environment = std::map<std::string, std::string>;

/// The environment of this process.
Environment current_environment();

/// Reads back what the launcher injected: torchrun's identity variables, FSDP_*, ACCELERATE_* and
/// ACC_*. Without any of them it is one rank and no sharding. Throws Error(config) that names the
/// variable, its value and what was expected; all faults at once.
RuntimeSettings settings_from_environment(const Environment& environment);

}  // namespace acc::plugins
