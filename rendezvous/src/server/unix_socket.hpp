#pragma once

#include "acc/rendezvous/listener.hpp"

#include <string>

namespace acc::rendezvous {

/// Listens on the Unix socket `unix:/path`: see listen_on.
Listener listen_on_unix(const std::string& host);

}  // namespace acc::rendezvous
