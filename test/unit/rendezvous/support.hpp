// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/server.hpp"
#include "acc/rendezvous/store.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"
#include "wire/frames.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace acc::rendezvous::test {

using acc::test::contains;
using acc::test::error_of;
using namespace std::chrono_literals;

/// Upper bound of waits for events that must happen; a test that passes does not take that long.
inline constexpr auto kSoon = 120s;
inline constexpr auto kForEver = Store::Milliseconds::max();

/// A server on a separate thread and a free port of 127.0.0.1.
class ServerThread {
 public:
  explicit ServerThread(ServerOptions options = {}, const std::string& host = "127.0.0.1")
      : ServerThread(options, listen_on({host}, 0)) {}
  ServerThread(ServerOptions options, std::vector<Listener> listeners)
      : server_(std::make_unique<Server>(io_, std::move(listeners), options)),
        port_(server_->port()),
        thread_([this] { io_.run(); }) {}
  ~ServerThread() { stop(); }

  [[nodiscard]] std::uint16_t port() const { return port_; }

  /// Runs `call(server)` on the server's thread, and waits for it.
  template <typename Call>
  void run(Call&& call) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      call(*server_);
      done.set_value();
    });
    done.get_future().get();
  }

  /// Stops gracefully; returns when the server has no work left.
  void stop() {
    if (thread_.joinable()) {
      boost::asio::post(io_, [this] { server_->stop(); });
      thread_.join();
    }
  }

 private:
  boost::asio::io_context io_;
  std::unique_ptr<Server> server_;
  std::uint16_t port_;
  std::thread thread_;
};

inline std::string encoded(const wire::Request& request) {
  std::string bytes;
  wire::encode(request, bytes);
  return bytes;
}

inline std::string validate() {
  return encoded({.opcode = wire::Opcode::validate, .number = wire::kMagic});
}

inline std::string ping(std::uint32_t nonce) {
  return encoded({.opcode = wire::Opcode::ping, .number = nonce});
}

inline std::string pong(std::uint32_t nonce) {
  std::string bytes;
  wire::put_u32(bytes, nonce);
  return bytes;
}

inline std::string get(const std::string& key) {
  return encoded({.opcode = wire::Opcode::get, .keys = {key}});
}

inline std::string set(const std::string& key, const std::string& value) {
  return encoded({.opcode = wire::Opcode::set, .keys = {key}, .values = {value}});
}

/// Encodes a value as in a reply.
inline std::string sized(const std::string& value) {
  std::string bytes;
  wire::put_bytes(bytes, value);
  return bytes;
}

/// A client that sends arbitrary bytes; each read has the timeout `kSoon`.
class RawClient {
 public:
  using tcp = boost::asio::ip::tcp;

  /// `receive_buffer`: bytes that the kernel buffers for a client that does not read; 0: its
  /// default, up to many MiB.
  explicit RawClient(std::uint16_t port, const std::string& host = "127.0.0.1",
                     int receive_buffer = 0) {
    const tcp::endpoint server(boost::asio::ip::make_address(host), port);
    if (receive_buffer > 0) {
      socket_.open(server.protocol());
      socket_.set_option(tcp::socket::receive_buffer_size(receive_buffer));
    }
    socket_.connect(server);
    socket_.set_option(tcp::no_delay(true));
  }
  /// Connects to a Unix socket.
  explicit RawClient(const std::string& path) {
    socket_.connect(boost::asio::local::stream_protocol::endpoint(path));
  }

  /// Sends all bytes with plain system calls, so that another thread may use `read` meanwhile.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent =
          ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        pollfd writable{socket_.native_handle(), POLLOUT, 0};
        ::poll(&writable, 1, -1);
      } else {
        throw boost::system::system_error(errno, boost::system::system_category(), "send");
      }
    }
  }

  std::string read(std::size_t count) {
    std::string bytes(count, '\0');
    boost::system::error_code result;
    boost::asio::async_read(socket_, boost::asio::buffer(bytes),
                            [&](const boost::system::error_code& error, std::size_t size) {
                              result = error;
                              bytes.resize(size);
                            });
    run();
    return bytes;
  }

  /// Returns the bytes up to and including `end`.
  std::string read_until(std::string_view end) {
    std::string bytes;
    while (!bytes.ends_with(end)) {
      const std::string byte = read(1);
      REQUIRE_MESSAGE(!byte.empty(), "no \"" << end << "\" in " << bytes);
      bytes += byte;
    }
    return bytes;
  }

  /// Returns all bytes until the server closes.
  std::string read_to_end() {
    std::string bytes;
    closed_ = false;
    boost::asio::async_read(socket_, boost::asio::dynamic_buffer(bytes),
                            [&](const boost::system::error_code&, std::size_t) { closed_ = true; });
    run();
    REQUIRE_MESSAGE(closed_, "the server did not close the connection");
    return bytes;
  }

  /// Returns all replies up to now: the bytes before the reply to a PING.
  std::string replies(std::size_t expected) {
    send(ping(0xABCDEF01));
    const std::string bytes = read(expected + 4);
    REQUIRE(bytes.size() == expected + 4);
    CHECK(bytes.substr(expected) == pong(0xABCDEF01));
    return bytes.substr(0, expected);
  }

  /// Closes the sending side; the client can still read.
  void half_close() { socket_.shutdown(tcp::socket::shutdown_send); }

  [[nodiscard]] int fd() { return socket_.native_handle(); }

 private:
  void run() {
    io_.restart();
    io_.run_for(kSoon);
    if (!io_.stopped()) {
      socket_.cancel();
      io_.run();
    }
  }

  boost::asio::io_context io_;
  boost::asio::generic::stream_protocol::socket socket_{io_};
  bool closed_ = false;
};

}  // namespace acc::rendezvous::test
