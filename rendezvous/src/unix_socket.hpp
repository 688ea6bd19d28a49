#pragma once

#include "acc/rendezvous/listener.hpp"

#include <string>

namespace acc::rendezvous {

/// Listens on `unix:/path`, as listen_on says.
Listener listen_on_unix(const std::string& host);

}  // namespace acc::rendezvous
