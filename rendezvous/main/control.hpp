// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace acc::rendezvous {

/// `acc-rendezvous ctl`: sends a command to a daemon and prints its output. Returns the exit
/// status: 1 if the daemon could not do it. Throws Error.
int control(std::span<const std::string> arguments);

}  // namespace acc::rendezvous
