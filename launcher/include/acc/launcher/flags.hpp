// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/flags.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// A command line of the launcher. The planner checks its values and reports `faults` together with
/// the errors that it finds itself.
struct Flags : settings::ParsedFlags {
  bool needs_program = true;           ///< false for `explain`: it may be left out, or not exist
  bool one_process_a_machine = false;  ///< default of one worker per machine, for `doctor`
  std::vector<std::string> typed{};    ///< all arguments, after the front end's name
};

}  // namespace acc::launcher
