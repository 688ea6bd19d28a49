// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/environment.hpp"

#include <filesystem>

namespace acc::launcher {

/// Returns the path of the configuration file that Accelerate uses without --config_file:
/// `$HF_HOME/accelerate/default_config.yaml`. The file need not exist.
std::filesystem::path default_config_path(const plugins::Environment& environment);

}  // namespace acc::launcher
