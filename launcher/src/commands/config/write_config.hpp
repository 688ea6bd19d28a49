#pragma once

#include "acc/plugins/document.hpp"

#include <filesystem>

namespace acc::launcher {

/// Writes a configuration file: JSON where the name ends in `.json`, else YAML; keys sorted. The
/// file is complete or as it was. Throws Error(config) when it cannot be written.
void write_config(const plugins::Node& config, const std::filesystem::path& path);

}  // namespace acc::launcher
