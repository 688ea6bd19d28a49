// SPDX-License-Identifier: Apache-2.0
#include "tunnel/relay.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "agent/dial.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr auto kOutcome = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kDialTimeout{10};
constexpr std::size_t kBufferBytes = 64 * 1024;
// Bytes for the server beyond which the client is not read.
constexpr std::size_t kMaxUnsent = std::size_t{1} << 20;

}  // namespace

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
    const std::string failure = co_await dial(server_, target.host, target.port, kDialTimeout);
    if (!failure.empty() || !client_.is_open()) {
      logger(Component::rendezvous).debug("tunnel to {}:{}: {}", target.host, target.port, failure);
      co_return false;
    }
    link_.emplace(security_, target.host, secure::Admission{Role::store, target.run_id}, token);
    try {
      co_return co_await enter(plain);
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
    co_await asio::async_write(server_, asio::buffer(bytes), kOutcome);
    if (link_->is_admitted()) {
      co_return true;
    }
    const auto [error, count] = co_await server_.async_read_some(asio::buffer(buffer), kOutcome);
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
    const auto [error, count] = co_await client_.async_read_some(asio::buffer(buffer), kOutcome);
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
          co_await asio::async_write(client_, asio::buffer(plain), kOutcome);
      if (failed) {
        break;
      }
    }
    if (link_->is_finished()) {
      break;
    }
    const auto [error, count] = co_await server_.async_read_some(asio::buffer(buffer), kOutcome);
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
  bool has_said_end = false;
  while (server_.is_open()) {
    if (is_over_ && !std::exchange(has_said_end, true)) {
      link_->finish(unsent_);
    }
    if (unsent_.empty()) {
      if (has_said_end) {
        error_code ignored;
        server_.shutdown(Socket::shutdown_send, ignored);
        co_return;
      }
      has_more_.close();
      co_await has_more_.passed();
      continue;
    }
    const std::string bytes = std::exchange(unsent_, {});
    const auto [error, count] = co_await asio::async_write(server_, asio::buffer(bytes), kOutcome);
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

}  // namespace acc::rendezvous
