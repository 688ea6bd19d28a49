#pragma once

#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/server.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// A bound, listening, non-blocking socket. What it accepts has the options it was given.
struct ListeningSocket {
  UniqueFd fd;
  std::uint16_t port = 0;  ///< 0: a Unix socket
  std::string path;        ///< of a Unix socket: to be removed with it
};

/// See Server's constructor.
std::vector<ListeningSocket> listen_on(const std::vector<Address>& addresses);

}  // namespace acc::rendezvous
