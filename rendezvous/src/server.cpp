#include "acc/rendezvous/server.hpp"

#include "acc/base/log.hpp"
#include "connection.hpp"
#include "listen.hpp"
#include "rounds/agent_session.hpp"
#include "rounds/jobs.hpp"
#include "session.hpp"

#include <boost/asio/io_context.hpp>

#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

// After a failed accept, most likely for want of descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

/// Kept alive by pending handlers, so that a Server may go away at any time.
class Server::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const std::string& host, std::uint16_t port, ServerOptions options)
      : options_(options),
        table_([this](Connection::Id id) {
          connections_.at(id)->send({&wire::kReleased, 1});
        }),
        acceptors_(listen_on(io, host, port)),
        port_(acceptors_.front().local_endpoint().port()),
        accept_timer_(io),
        round_timer_(io) {}

  void start() {
    for (tcp::acceptor& acceptor : acceptors_) {
      accept(acceptor);
    }
  }

  void stop() {
    close_acceptors();
    for (const auto& [id, connection] : all_connections()) {
      connection->finish();
    }
  }

  void renew_store() {
    for (const auto& [id, connection] : all_connections()) {
      if (!agents_.contains(id)) {
        connection->close();
      }
    }
    table_.clear();
  }

  void close() {
    close_acceptors();
    for (const auto& [id, connection] : all_connections()) {
      connection->close();
    }
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] std::size_t num_connections() const noexcept { return connections_.size(); }

 private:
  void close_acceptors() {
    error_code ignored;
    for (tcp::acceptor& acceptor : acceptors_) {
      acceptor.close(ignored);
    }
    accept_timer_.cancel();
    round_timer_.cancel();
  }

  void accept(tcp::acceptor& acceptor) {
    acceptor.async_accept(
        [self = shared_from_this(), &acceptor](const error_code& error, tcp::socket socket) {
          self->accepted(acceptor, error, std::move(socket));
        });
  }

  void accepted(tcp::acceptor& acceptor, const error_code& error, tcp::socket socket) {
    if (!acceptor.is_open()) {
      return;
    }
    if (error && error != asio::error::connection_aborted) {
      logger("rendezvous")->warn("cannot accept a store client: {}", error.message());
      return accept_later(acceptor);
    }
    if (!error) {
      add_connection(std::move(socket));
    }
    accept(acceptor);
  }

  void accept_later(tcp::acceptor& acceptor) {
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([self = shared_from_this(), &acceptor](const error_code&) {
      if (acceptor.is_open()) {
        self->accept(acceptor);
      }
    });
  }

  void add_connection(tcp::socket socket) {
    const Connection::Id id = next_id_++;
    // Owns this: a connection's last handler may come after the Server is gone.
    auto closed = [self = shared_from_this()](Connection::Id gone) { self->forget(gone); };
    auto open = [this](Connection::Id who, char first) { return conversation(who, first); };
    auto connection = std::make_shared<Connection>(std::move(socket), id, scratch_, options_,
                                                   std::move(open), std::move(closed));
    connections_.emplace(id, connection);
    connection->start();
  }

  std::unique_ptr<Conversation> conversation(Connection::Id id, char first) {
    if (first == static_cast<char>(wire::Opcode::validate)) {
      return std::make_unique<Session>(table_, id);
    }
    if (first == rounds::kHello.front() && options_.forms_rounds) {
      agents_.insert(id);
      return std::make_unique<rounds::AgentSession>([this, id](rounds::AgentMessage message) {
        rounds::Outbox out;
        jobs_.receive(id, std::move(message), Clock::now(), out);
        deliver(out);
      });
    }
    return nullptr;
  }

  /// What the agents hear, and when time alone changes something next.
  void deliver(const rounds::Outbox& out) {
    for (const rounds::Letter& letter : out) {
      const auto found = connections_.find(letter.to);
      if (found == connections_.end()) {
        continue;
      }
      const auto connection = found->second;
      connection->send(*letter.frame);
      if (letter.is_last) {
        connection->finish();
      }
    }
    round_timer_.expires_at(jobs_.next_deadline());
    round_timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) {
        rounds::Outbox due;
        self->jobs_.pass(Clock::now(), due);
        self->deliver(due);
      }
    });
  }

  void forget(Connection::Id id) {
    table_.cancel(id);
    connections_.erase(id);
    if (agents_.erase(id) > 0) {
      rounds::Outbox out;
      jobs_.lose(id, "its connection has ended", Clock::now(), out);
      deliver(out);
    }
  }

  /// A copy: closing changes the table of connections.
  [[nodiscard]] std::vector<std::pair<Connection::Id, std::shared_ptr<Connection>>>
  all_connections() const {
    return {connections_.begin(), connections_.end()};
  }

  ServerOptions options_;
  KeyTable table_;
  std::vector<tcp::acceptor> acceptors_;
  std::uint16_t port_;
  asio::steady_timer accept_timer_;
  std::array<char, 64 * 1024> scratch_{};
  std::unordered_map<Connection::Id, std::shared_ptr<Connection>> connections_;
  Connection::Id next_id_ = 0;
  std::unordered_set<Connection::Id> agents_;
  rounds::Jobs jobs_;
  asio::steady_timer round_timer_;
};

Server::Server(asio::io_context& io, const std::string& host, std::uint16_t port,
               ServerOptions options)
    : impl_(std::make_shared<Impl>(io, host, port, options)) {
  impl_->start();
}

Server::~Server() {
  impl_->close();
}

std::uint16_t Server::port() const noexcept {
  return impl_->port();
}

std::size_t Server::num_connections() const noexcept {
  return impl_->num_connections();
}

void Server::renew_store() {
  impl_->renew_store();
}

void Server::stop() {
  impl_->stop();
}

}  // namespace acc::rendezvous
