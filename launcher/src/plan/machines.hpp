// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/flags.hpp"

#include <cstdint>
#include <string>

namespace acc::launcher::plan {

/// Returns the commands to run on the machines, one line per machine, for an error message about a
/// missing rank or address.
std::string machines_hint(const Flags& flags, int num_machines, const std::string& address,
                          std::uint16_t port);

/// Returns the program and its arguments, quoted for a shell, with a leading space.
std::string quoted_program(const Flags& flags);

}  // namespace acc::launcher::plan
