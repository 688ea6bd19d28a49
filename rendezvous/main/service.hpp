// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

#include <functional>

namespace acc::rendezvous {

/// Returns the settings again, from the same sources.
using ReadOptions = std::function<Options()>;

/// Runs the daemon until SIGTERM or SIGINT, and reports its state to the service manager. Listens
/// on the sockets that it inherited from systemd, or else on the hosts of the options. Throws
/// Error(connection) if it cannot listen, Error(config) if the port file cannot be written or if
/// other machines could reach it without a token. SIGHUP calls `read_again` and applies the limits,
/// token, certificates and log level.
void run_service(Options options, ReadOptions read_again);

}  // namespace acc::rendezvous
