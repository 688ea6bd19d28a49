#pragma once

#include "acc/launcher/start_plan.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// One process here that stands for the launcher of a machine, or for those of all.
struct ClientCommand {
  std::string name;  ///< "machine 2 (node2)", "the machines"
  /// The program's bare name, then its arguments.
  std::vector<std::string> words;
  plugins::Environment environment;  ///< besides this process's
  std::string first_input;           ///< before the control messages, where it hears them
  bool is_controlled = true;         ///< hears control messages
  std::string input_file;            ///< holds `first_input` for who does not; empty: none
  std::string log_file;              ///< for what ssh itself has to say; empty: none
};

/// By machine rank, or one for all. `folder`: for log and input files; others cannot look into it.
std::vector<ClientCommand> client_commands(const StartPlan& plan, const std::string& folder);

}  // namespace acc::launcher
