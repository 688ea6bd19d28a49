// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <string>

namespace acc::rendezvous {

/// Formats an address: `127.0.0.1:29500`, `[::1]:29500`, `unix:/path`, or `unix:@name` for a Unix
/// socket in the abstract name space (unix(7)). Empty for other address families.
std::string socket_name(const sockaddr* address, socklen_t size);

}  // namespace acc::rendezvous
