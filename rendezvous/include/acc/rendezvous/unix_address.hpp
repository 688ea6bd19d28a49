#pragma once

#include <sys/un.h>

#include <string>
#include <string_view>

namespace acc::rendezvous {

/// What stands before the path of a Unix socket where a host is expected: "unix:/path".
inline constexpr std::string_view kUnixPrefix = "unix:";

/// Whether a host is a Unix socket.
constexpr bool is_unix(std::string_view host) {
  return host.starts_with(kUnixPrefix);
}

/// What is wrong with the path of such a host, or "".
std::string unix_fault(std::string_view host);

/// The address of such a host. Throws Error(invalid_argument) where there is a fault.
sockaddr_un unix_address(std::string_view host);

}  // namespace acc::rendezvous
