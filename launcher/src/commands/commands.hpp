// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/pages/command_pages.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Entry points of the sub-commands: each gets the arguments after its name and returns the exit
/// status; see SubCommand.
namespace acc::launcher::commands {

int compare_command(std::span<const std::string> arguments);
int complete_words_command(std::span<const std::string> arguments);
int completion_command(std::span<const std::string> arguments);
int config_command(std::span<const std::string> arguments);
int convert_command(std::span<const std::string> arguments);
int convert_config_command(std::span<const std::string> arguments);
int data_command(std::span<const std::string> arguments);
int dump_command(std::span<const std::string> arguments);
int env_command(std::span<const std::string> arguments);
int estimate_memory_command(std::span<const std::string> arguments);
int expand_hosts_command(std::span<const std::string> arguments);
int explain_command(std::span<const std::string> arguments);
int inspect_command(std::span<const std::string> arguments);
int manual_page_command(std::span<const std::string> arguments);
int merge_weights_command(std::span<const std::string> arguments);
int plot_command(std::span<const std::string> arguments);
int reshard_command(std::span<const std::string> arguments);
int stacks_command(std::span<const std::string> arguments);
int status_command(std::span<const std::string> arguments);
int top_command(std::span<const std::string> arguments);
int to_fsdp2_command(std::span<const std::string> arguments);
int trace_command(std::span<const std::string> arguments);
int verify_command(std::span<const std::string> arguments);
int environment_table_command(std::span<const std::string> arguments);
int configuration_table_command(std::span<const std::string> arguments);

/// Returns the description of a front end or a listed sub-command by its name: `torchrun`,
/// `config`; `launch` is the page of acclaunch itself. Throws Error(invalid_argument) for another
/// name.
pages::CommandPage command_page(std::string_view name);

/// Returns the names and one-line descriptions of all commands that users call.
std::vector<pages::Candidate> command_names();

}  // namespace acc::launcher::commands
