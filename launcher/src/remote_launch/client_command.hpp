// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/remote_launch_plan.hpp"
#include "acc/settings/environment.hpp"

#include <string>
#include <vector>

namespace acc::launcher::remote_launch {
/// Command of a client: a local process (ssh, pdsh or srun) that runs the launcher of one machine,
/// or of all machines.
struct ClientCommand {
  std::string name;  ///< "machine 2 (node2)", "the machines"
  /// The program's bare name, then its arguments.
  std::vector<std::string> words;
  settings::Environment environment{};  ///< in addition to this process's environment
  std::string first_input{};            ///< start message; precedes the control messages
  bool is_controlled = true;            ///< receives control messages on its standard input
  std::string input_file{};             ///< file to write `first_input` to instead; empty: none
  std::string log_file{};               ///< file for ssh's own error messages; empty: none
};

/// Returns one command per machine, by machine rank, or one for all machines. `folder` is for log
/// and input files and must not be readable by other users: the start message contains the
/// environment.
std::vector<ClientCommand> client_commands(const RemoteLaunchPlan& plan, const std::string& folder);

/// Returns the part of this process's environment that is passed on to other machines: everything
/// except variables that belong to this host, session or job. Empty for srun, which passes on the
/// whole environment itself.
settings::Environment environment_for_other_machines(const settings::Environment& own,
                                                     RemoteLaunchPlan::Means means);

}  // namespace acc::launcher::remote_launch
