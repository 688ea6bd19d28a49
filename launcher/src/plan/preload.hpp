// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/draft.hpp"
#include "plan/program_command.hpp"

#include <string>
#include <vector>

namespace acc::launcher::plan {

/// Reads the setting preload. `command` is that of the workers, made by `program_command` from
/// `kind`. Throws Error(config) if a name is no module's, or if PROGRAM does not run under Python.
PreloadPlan read_preload(const Draft& draft, ProgramKind kind,
                         const std::vector<std::string>& command);

}  // namespace acc::launcher::plan
