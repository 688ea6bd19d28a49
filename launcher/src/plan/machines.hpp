#pragma once

#include "acc/launcher/flags.hpp"

#include <cstdint>
#include <string>

namespace acc::launcher {

/// The command line to type on each machine, where a rank or address was left out.
std::string machines_hint(const Flags& flags, int num_machines, const std::string& address,
                          std::uint16_t port);

/// The program and its arguments as they stood on the command line, after a blank.
std::string quoted_program(const Flags& flags);

}  // namespace acc::launcher
