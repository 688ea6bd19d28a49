// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace acc::rendezvous {

/// A TCPStore on loopback for unmodified clients: passes each connection on to a secure server,
/// encrypted and with the proof of the token. Connections of other users than this process' own and
/// root are closed.
///
/// Runs on the one thread that runs `io`; must not outlive `io`.
class Tunnel {
 public:
  struct Target {
    std::string host;
    std::uint16_t port = 0;
    std::string run_id;  ///< the job for which the token is proved
  };

  /// Listens on 127.0.0.1 at `port`; 0: a free port. `report` receives one line for the user when
  /// server and tunnel do not accept each other. Throws Error(connection) if it cannot listen.
  Tunnel(boost::asio::io_context& io, std::uint16_t port, Target target,
         std::shared_ptr<const ClientSecurity> security,
         std::function<void(const std::string&)> report);
  /// Closes all connections.
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace acc::rendezvous
