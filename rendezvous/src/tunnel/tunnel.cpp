// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tunnel.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/rendezvous/gate.hpp"
#include "agent/dial.hpp"
#include "net/peer_user.hpp"
#include "net/rate_limiter.hpp"
#include "secure/secure_link.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kAnswer = asio::as_tuple(asio::use_awaitable);
// Pause after a failed accept, when the process is out of descriptors.
constexpr std::chrono::milliseconds kPause{100};
// Limit for the connection to the server, and then for its answers to TLS and the proof.
constexpr std::chrono::seconds kConnectTimeout{10};
constexpr std::size_t kBufferBytes = std::size_t{64} * 1024;
// Bytes for the server beyond which the client is not read.
constexpr std::size_t kMaxUnsent = std::size_t{1} << 20;

/// One connection of a tunnel: a client on this machine and its encrypted connection to the server.
/// Three coroutines hold it: bytes of the client, bytes of the server, and what is to be written to
/// the server, which both others produce.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  using Socket = tcp::socket;

  /// `report` receives the reason if server and client do not accept each other.
  Relay(Socket client, std::shared_ptr<const ClientSecurity> security,
        std::function<void(const std::string&)> report);

  /// Connects to the server and passes bytes on until one side ends.
  asio::awaitable<void> run(Tunnel::Target target);
  void close() noexcept;

 private:
  asio::awaitable<bool> connect(const Tunnel::Target& target, std::string& plain);
  asio::awaitable<bool> enter(std::string& plain);
  asio::awaitable<void> pass_to_server();
  asio::awaitable<void> pass_to_client(std::string plain);
  asio::awaitable<void> write();

  Socket client_;
  Socket server_;
  std::shared_ptr<const ClientSecurity> security_;
  std::optional<secure::SecureLink> link_;  ///< of the connection to server_
  std::function<void(const std::string&)> report_;
  Gate has_more_;         // there is something to write, or the end
  Gate has_room_;         // little is left to write
  std::string unsent_;    // for the server
  bool is_over_ = false;  // the client sends nothing more
  bool is_late_ = false;  // the server has not answered within kConnectTimeout
};

Relay::Relay(Socket client, std::shared_ptr<const ClientSecurity> security,
             std::function<void(const std::string&)> report)
    : client_(std::move(client)),
      server_(client_.get_executor()),
      security_(std::move(security)),
      report_(std::move(report)),
      has_more_(client_.get_executor()),
      has_room_(client_.get_executor()) {}

asio::awaitable<void> Relay::run(Tunnel::Target target) {
  const auto self = shared_from_this();
  std::string plain;
  if (!co_await connect(target, plain)) {
    // The client sees the end of the stream: closing a socket with unread bytes would reset it.
    std::vector<char> unread(kBufferBytes);
    error_code error;
    while (client_.available(error) > 0 && !error) {
      client_.read_some(asio::buffer(unread), error);
    }
    close();
    co_return;
  }
  has_more_.open();
  has_room_.open();
  asio::co_spawn(client_.get_executor(), write(), asio::detached);
  asio::co_spawn(client_.get_executor(), pass_to_server(), asio::detached);
  co_await pass_to_client(std::move(plain));
}

/// Connects and proves the tokens that this machine has now, until the server accepts one. Puts the
/// first bytes for the client into `plain`.
asio::awaitable<bool> Relay::connect(const Tunnel::Target& target, std::string& plain) {
  std::string refusal;
  for (const Tokens& token : security_->tokens.now().each()) {
    error_code ignored;
    server_.close(ignored);
    const std::string failure = co_await dial(server_, target.host, target.port, kConnectTimeout);
    if (!failure.empty() || !client_.is_open()) {
      logger(Component::rendezvous).debug("tunnel to {}:{}: {}", target.host, target.port, failure);
      co_return false;
    }
    link_.emplace(security_, target.host, secure::Admission{Role::store, target.run_id}, token);
    asio::steady_timer limit(server_.get_executor(), kConnectTimeout);
    limit.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->link_->is_admitted()) {
        self->is_late_ = true;
        self->server_.close(error);
      }
    });
    try {
      const bool has_entered = co_await enter(plain);
      if (!is_late_) {
        co_return has_entered;
      }
      refusal = fmt::format("no answer to TLS or the proof of the token within {} s",
                            kConnectTimeout.count());
      break;
    } catch (const TokenRefused& refused) {
      refusal = refused.what();  // the next token may be the one that the server has
    } catch (const Error& error) {
      refusal = error.what();
      break;
    }
  }
  report_(refusal);
  co_return false;
}

/// Exchanges the messages of TLS and of the proof. False if the connection ends.
asio::awaitable<bool> Relay::enter(std::string& plain) {
  std::vector<char> buffer(kBufferBytes);
  link_->start(unsent_);
  for (;;) {
    const std::string bytes = std::exchange(unsent_, {});
    co_await asio::async_write(server_, asio::buffer(bytes), kAnswer);
    if (link_->is_admitted()) {
      co_return true;
    }
    const auto [error, count] = co_await server_.async_read_some(asio::buffer(buffer), kAnswer);
    if (error) {
      co_return false;
    }
    link_->receive({buffer.data(), count}, plain, unsent_);
  }
}

asio::awaitable<void> Relay::pass_to_server() {
  const auto self = shared_from_this();
  std::vector<char> buffer(kBufferBytes);
  for (;;) {
    const auto [error, count] = co_await client_.async_read_some(asio::buffer(buffer), kAnswer);
    if (error || !server_.is_open()) {
      break;
    }
    link_->send({buffer.data(), count}, unsent_);
    has_more_.open();
    if (unsent_.size() > kMaxUnsent) {
      has_room_.close();
      co_await has_room_.passed();
    }
  }
  is_over_ = true;
  has_more_.open();
}

asio::awaitable<void> Relay::pass_to_client(std::string plain) {
  const auto self = shared_from_this();
  std::vector<char> buffer(kBufferBytes);
  for (;;) {
    if (!plain.empty()) {
      const auto [failed, written] =
          co_await asio::async_write(client_, asio::buffer(plain), kAnswer);
      if (failed) {
        break;
      }
    }
    if (link_->is_finished()) {
      break;
    }
    const auto [error, count] = co_await server_.async_read_some(asio::buffer(buffer), kAnswer);
    if (error) {
      break;
    }
    plain.clear();
    try {
      link_->receive({buffer.data(), count}, plain, unsent_);
    } catch (const Error& failure) {
      report_(failure.what());
      break;
    }
    has_more_.open();
  }
  close();
}

/// Writes what the other coroutines have queued. The server closes the connection when it has read
/// the end.
asio::awaitable<void> Relay::write() {
  const auto self = shared_from_this();
  bool has_sent_end = false;
  while (server_.is_open()) {
    if (is_over_ && !std::exchange(has_sent_end, true)) {
      link_->finish(unsent_);
    }
    if (unsent_.empty()) {
      if (has_sent_end) {
        error_code ignored;
        server_.shutdown(Socket::shutdown_send, ignored);
        co_return;
      }
      has_more_.close();
      co_await has_more_.passed();
      continue;
    }
    const std::string bytes = std::exchange(unsent_, {});
    const auto [error, count] = co_await asio::async_write(server_, asio::buffer(bytes), kAnswer);
    if (error) {
      break;
    }
    has_room_.open();
  }
  close();
}

void Relay::close() noexcept {
  error_code ignored;
  client_.close(ignored);
  server_.close(ignored);
  is_over_ = true;
  has_more_.open();
  has_room_.open();
}

}  // namespace

class Tunnel::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, std::uint16_t port, Target target,
       std::shared_ptr<const ClientSecurity> security,
       std::function<void(const std::string&)> report)
      : acceptor_(io),
        pause_(io),
        target_(std::move(target)),
        security_(std::move(security)),
        report_(std::move(report)) {
    const tcp::endpoint endpoint(asio::ip::address_v4::loopback(), port);
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor_.bind(endpoint, error);
    if (!error) {
      acceptor_.listen(asio::socket_base::max_listen_connections, error);
    }
    if (error) {
      throw Error(Errc::connection,
                  fmt::format("cannot listen on 127.0.0.1:{}: {}", port, error.message()));
    }
  }

  void start() {
    asio::co_spawn(
        acceptor_.get_executor(), [self = shared_from_this()] { return self->accept(); },
        asio::detached);
  }

  void close() noexcept {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    for (const auto& relay : relays_) {
      if (const auto open = relay.lock()) {
        open->close();
      }
    }
  }

  [[nodiscard]] std::uint16_t port() const noexcept {
    error_code ignored;
    return acceptor_.local_endpoint(ignored).port();
  }

 private:
  asio::awaitable<void> accept() {
    while (acceptor_.is_open()) {
      auto [error, client] = co_await acceptor_.async_accept(kAnswer);
      if (!acceptor_.is_open()) {
        co_return;
      }
      if (error) {
        pause_.expires_after(kPause);
        co_await pause_.async_wait(kAnswer);
      } else {
        serve(std::move(client));
      }
    }
  }

  void serve(tcp::socket client) {
    if (!users_.is_own(client.native_handle())) {
      if (refusals_()) {
        logger(Component::rendezvous)
            .warn("closing a connection of another user to the store on 127.0.0.1:{}", port());
      }
      return;
    }
    error_code ignored;
    client.set_option(tcp::no_delay(true), ignored);
    std::erase_if(relays_, [](const auto& relay) { return relay.expired(); });
    const auto relay =
        std::make_shared<Relay>(std::move(client), security_, [this](const auto& why) {
          if (std::exchange(complaint_, why) != why) {
            report_(fmt::format("the store at {}:{}: {}", target_.host, target_.port, why));
          }
        });
    relays_.push_back(relay);
    asio::co_spawn(acceptor_.get_executor(), relay->run(target_),
                   [relay, self = shared_from_this()](const std::exception_ptr&) {});
  }

  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  Target target_;
  std::shared_ptr<const ClientSecurity> security_;
  std::function<void(const std::string&)> report_;
  PeerUsers users_;
  RateLimiter refusals_;
  std::vector<std::weak_ptr<Relay>> relays_;
  std::string complaint_;  ///< the last one
};

Tunnel::Tunnel(asio::io_context& io, std::uint16_t port, Target target,
               std::shared_ptr<const ClientSecurity> security,
               std::function<void(const std::string&)> report)
    : impl_(std::make_shared<Impl>(io, port, std::move(target), std::move(security),
                                   std::move(report))) {
  impl_->start();
}

Tunnel::~Tunnel() {
  impl_->close();
}

std::uint16_t Tunnel::port() const noexcept {
  return impl_->port();
}

}  // namespace acc::rendezvous
