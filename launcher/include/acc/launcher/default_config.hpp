#pragma once

#include "acc/plugins/environment.hpp"

#include <filesystem>

namespace acc::launcher {

/// Where Accelerate keeps the configuration of a launch that names none:
/// `$HF_HOME/accelerate/default_config.yaml`.
std::filesystem::path default_config_path(const plugins::Environment& environment);

}  // namespace acc::launcher
