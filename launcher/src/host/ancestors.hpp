#pragma once

#include <string>
#include <vector>

namespace acc::launcher {

/// HostFacts::ancestors; at most 16. It ends early at a process of which /proc does not tell.
std::vector<std::vector<std::string>> detect_ancestors();

}  // namespace acc::launcher
