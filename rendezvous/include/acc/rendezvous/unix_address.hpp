// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/un.h>

#include <string>
#include <string_view>

namespace acc::rendezvous {

/// Prefix of a host that names a Unix socket: "unix:/path".
inline constexpr std::string_view kUnixPrefix = "unix:";

/// True if `host` names a Unix socket.
constexpr bool is_unix(std::string_view host) {
  return host.starts_with(kUnixPrefix);
}

/// Checks the path of such a host. Returns the problem, or "" if the path is usable.
std::string unix_fault(std::string_view host);

/// Returns the socket address of such a host. Throws Error(invalid_argument) if unix_fault does not
/// return "".
sockaddr_un unix_address(std::string_view host);

}  // namespace acc::rendezvous
