#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>

namespace acc::launcher {

/// Reads a sub-command's arguments, whose long flags may be spelled with `-` or `_`; declare them
/// with `_`. False: --help was asked for and printed. Throws Error(invalid_argument).
bool read_options(CLI::App& app, std::span<const std::string> arguments);

}  // namespace acc::launcher
