// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/sub_command.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <span>
#include <string>

namespace acc::launcher::commands {

/// Parses a sub-command's arguments. Long flags may be spelled with `-` or `_`; declare them with
/// `_`. Returns false if --help was given, after printing the help. Throws Error(invalid_argument).
bool read_options(CLI::App& app, std::span<const std::string> arguments);

/// Calls `visit` with the declared options of a sub-command instead of running it. A command that
/// does not use read_options must not be passed.
void visit_options(const SubCommand& command, const std::function<void(const CLI::App&)>& visit);

}  // namespace acc::launcher::commands
