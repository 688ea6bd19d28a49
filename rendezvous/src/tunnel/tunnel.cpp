// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tunnel.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "net/peer_user.hpp"
#include "net/rate_limiter.hpp"
#include "tunnel/relay.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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
