// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/unix_address.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

namespace acc::rendezvous {

std::string unix_fault(std::string_view host) {
  constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;  // without the final NUL
  const std::size_t size = host.size() - kUnixPrefix.size();
  return size > 0 && size <= kLongest
             ? ""
             : fmt::format("expected a path of 1..{} bytes after {}", kLongest, kUnixPrefix);
}

sockaddr_un unix_address(std::string_view host) {
  if (const std::string fault = unix_fault(host); !fault.empty()) {
    throw Error(Errc::invalid_argument, fmt::format("host \"{}\": {}", host, fault));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  host.substr(kUnixPrefix.size()).copy(address.sun_path, sizeof address.sun_path);
  return address;
}

}  // namespace acc::rendezvous
