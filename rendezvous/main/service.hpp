// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

namespace acc::rendezvous {

/// Runs the daemon until SIGTERM or SIGINT, and reports its state to the service manager. Listens
/// on the sockets that it inherited from systemd, or else on the hosts of the options. Throws
/// Error(connection) if it cannot listen, Error(config) if the port file cannot be written.
void run_service(Options options);

}  // namespace acc::rendezvous
