#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Reads a list of cores as the kernel writes it: "0-3,8,10-11".
std::vector<int> parse_core_list(std::string_view text);

/// The same list, from ascending numbers.
std::string core_list(const std::vector<int>& cores);

/// The numbers of the cores that this process may run on. Never empty.
std::vector<int> usable_cores();

}  // namespace acc::launcher
