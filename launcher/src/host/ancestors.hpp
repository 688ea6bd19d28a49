#pragma once

#include <string>
#include <vector>

namespace acc::launcher {

/// Returns HostFacts::ancestors, at most 16. The list ends early at a process whose command line is
/// not readable in /proc.
std::vector<std::vector<std::string>> detect_ancestors();

}  // namespace acc::launcher
