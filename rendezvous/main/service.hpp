#pragma once

#include "options.hpp"

namespace acc::rendezvous {

/// Serves until a signal ends it, and tells the service manager how it is. Listens on
/// what it inherited, else on the hosts of the options. Throws Error(connection) where it cannot
/// listen, Error(config) where the port file cannot be written.
void run_service(Options options);

}  // namespace acc::rendezvous
