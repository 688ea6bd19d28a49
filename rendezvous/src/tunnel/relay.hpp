// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/gate.hpp"
#include "acc/rendezvous/tunnel.hpp"
#include "secure/secure_link.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous {

/// One connection of a tunnel: a client on this machine and its encrypted connection to the server.
/// Three coroutines hold it: bytes of the client, bytes of the server, and what is to be written to
/// the server, which both others produce.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  /// `report` receives the reason if server and client do not accept each other.
  Relay(Socket client, std::shared_ptr<const ClientSecurity> security,
        std::function<void(const std::string&)> report);

  /// Connects to the server and passes bytes on until one side ends.
  boost::asio::awaitable<void> run(Tunnel::Target target);
  void close() noexcept;

 private:
  boost::asio::awaitable<bool> connect(const Tunnel::Target& target, std::string& plain);
  boost::asio::awaitable<bool> enter(std::string& plain);
  boost::asio::awaitable<void> pass_to_server();
  boost::asio::awaitable<void> pass_to_client(std::string plain);
  boost::asio::awaitable<void> write();

  Socket client_;
  Socket server_;
  std::shared_ptr<const ClientSecurity> security_;
  std::optional<secure::SecureLink> link_;  ///< of the connection to server_
  std::function<void(const std::string&)> report_;
  Gate has_more_;         // there is something to write, or the end
  Gate has_room_;         // little is left to write
  std::string unsent_;    // for the server
  bool is_over_ = false;  // the client sends nothing more
};

}  // namespace acc::rendezvous
