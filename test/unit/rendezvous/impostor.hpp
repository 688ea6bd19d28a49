// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support.hpp"

#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace acc::rendezvous::test {

/// A server that follows a script with one client.
class Impostor {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  explicit Impostor(std::function<void(Socket&)> script)
      : thread_([this, script = std::move(script)] {
          Socket socket = acceptor_.accept();
          script(socket);
        }) {}
  ~Impostor() { thread_.join(); }

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  static std::string read(Socket& socket, std::size_t count) {
    std::string bytes(count, '\0');
    boost::asio::read(socket, boost::asio::buffer(bytes));
    return bytes;
  }
  static void write(Socket& socket, const std::string& bytes) {
    boost::asio::write(socket, boost::asio::buffer(bytes));
  }
  /// Performs the server's side of the handshake: VALIDATE and PING.
  static void greet(Socket& socket) {
    const std::string hello = read(socket, 10);
    CHECK(hello.substr(0, 5) == validate());
    write(socket, hello.substr(6));
  }
  /// Reads until the client closes.
  static std::string read_to_end(Socket& socket) {
    std::string rest;
    boost::system::error_code closed;
    boost::asio::read(socket, boost::asio::dynamic_buffer(rest), closed);
    return rest;
  }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_{io_, {boost::asio::ip::address_v4::loopback(), 0}};
  std::thread thread_;
};

}  // namespace acc::rendezvous::test
