// SPDX-License-Identifier: Apache-2.0
#include "net/socket_name.hpp"

#include "acc/rendezvous/unix_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <array>
#include <cstddef>

namespace acc::rendezvous {
namespace {

std::string address_text(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(family, address, text.data(), text.size());
  return text.data();
}

/// Returns the path of a Unix socket. An abstract name begins with a zero byte, shown as '@'.
std::string path_text(const sockaddr_un& address, socklen_t size) {
  constexpr std::size_t kBegin = offsetof(sockaddr_un, sun_path);
  std::string path(address.sun_path, size > kBegin ? size - kBegin : 0);
  if (path.starts_with('\0')) {
    path[0] = '@';
  }
  return path.c_str();  // cuts zero bytes that may follow the path
}

}  // namespace

std::string socket_name(const sockaddr* address, socklen_t size) {
  switch (address->sa_family) {
    case AF_INET: {
      const auto& ip = *reinterpret_cast<const sockaddr_in*>(address);
      return fmt::format("{}:{}", address_text(AF_INET, &ip.sin_addr), ntohs(ip.sin_port));
    }
    case AF_INET6: {
      const auto& ip = *reinterpret_cast<const sockaddr_in6*>(address);
      return fmt::format("[{}]:{}", address_text(AF_INET6, &ip.sin6_addr), ntohs(ip.sin6_port));
    }
    case AF_UNIX:
      return fmt::format("{}{}", kUnixPrefix,
                         path_text(*reinterpret_cast<const sockaddr_un*>(address), size));
    default: return {};
  }
}

}  // namespace acc::rendezvous
