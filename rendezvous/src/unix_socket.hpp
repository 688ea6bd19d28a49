#pragma once

#include "acc/rendezvous/listener.hpp"

#include <string>
#include <string_view>

namespace acc::rendezvous {

/// Whether a host is `unix:/path`.
bool is_unix(std::string_view host);

/// Listens on `unix:/path`, as listen_on says.
Listener listen_on_unix(const std::string& host);

}  // namespace acc::rendezvous
