// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace acc::rendezvous {

/// Raises this process' soft limit of file descriptors (RLIMIT_NOFILE) to the hard limit.
void raise_descriptor_limit();

/// Returns the number of connections that the limit of file descriptors allows.
std::size_t max_fitting_connections();

/// Logs a warning if the limit of file descriptors does not allow so many connections.
void check_room_for(std::size_t max_connections);

}  // namespace acc::rendezvous
