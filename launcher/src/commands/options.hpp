// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>

namespace acc::launcher::commands {

/// Parses a sub-command's arguments. Long flags may be spelled with `-` or `_`; declare them with
/// `_`. Returns false if --help was given, after printing the help. Throws Error(invalid_argument).
bool read_options(CLI::App& app, std::span<const std::string> arguments);

}  // namespace acc::launcher::commands
