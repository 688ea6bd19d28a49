// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/sub_command.hpp"
#include "acc/plugins/command_pages.hpp"

#include <string_view>
#include <vector>

namespace acc::launcher::commands {

/// Returns the description of a front end or a listed sub-command by its name: `torchrun`,
/// `config`; `launch` is the page of acclaunch itself. Throws Error(invalid_argument) for another
/// name.
plugins::CommandPage command_page(std::string_view name);

/// Returns the names and one-line descriptions of all commands that users call.
std::vector<plugins::Candidate> command_names();

}  // namespace acc::launcher::commands
