#include "acc/rendezvous/server.hpp"

#include "acc/base/log.hpp"
#include "connection.hpp"
#include "listen.hpp"
#include "records.hpp"

#include <boost/asio/io_context.hpp>

#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// After a failed accept, most likely for want of descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

/// Kept alive by pending handlers, so that a Server may go away at any time.
class Server::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const std::string& host, std::uint16_t port, ServerOptions options)
      : options_(options),
        table_([this](KeyTable::WaiterId id) { connections_.at(id)->release(); }),
        acceptors_(listen_on(io, host, port)),
        port_(acceptors_.front().local_endpoint().port()),
        accept_timer_(io) {}

  void start() {
    for (tcp::acceptor& acceptor : acceptors_) {
      accept(acceptor);
    }
  }

  void on_machine_gone(std::function<void(int)> callback) {
    machine_gone_ = std::move(callback);
    for (const int machine : std::exchange(gone_machines_, {})) {
      machine_gone_(machine);
    }
  }

  void stop() {
    machine_gone_ = nullptr;
    close_acceptors();
    for (const auto& connection : all_connections()) {
      connection->finish();
    }
  }

  void set(const std::string& key, std::string value) { table_.set("/" + key, std::move(value)); }

  void set_if_absent(const std::string& key, std::string value) {
    table_.compare_set("/" + key, "", std::move(value));
  }

  void forget_workers() {
    for (const auto& connection : all_connections()) {
      if (!connection->is_launcher()) {
        connection->close();
      }
    }
    table_.keep_only("/" + std::string(kLauncherKeys));
  }

  void close() {
    machine_gone_ = nullptr;
    close_acceptors();
    for (const auto& connection : all_connections()) {
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
    const KeyTable::WaiterId id = next_id_++;
    // Owns this: a connection's last handler may come after the Server is gone.
    auto closed = [self = shared_from_this()](KeyTable::WaiterId gone) { self->forget(gone); };
    auto connection = std::make_shared<Connection>(std::move(socket), table_, id, scratch_,
                                                   options_, std::move(closed));
    connections_.emplace(id, connection);
    connection->start();
  }

  void forget(KeyTable::WaiterId id) {
    table_.cancel(id);
    const auto machine = connections_.at(id)->tied_machine();
    connections_.erase(id);
    if (machine && machine_gone_) {
      machine_gone_(*machine);
    } else if (machine) {
      gone_machines_.push_back(*machine);
    }
  }

  /// A copy: closing changes the table of connections.
  [[nodiscard]] std::vector<std::shared_ptr<Connection>> all_connections() const {
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [id, connection] : connections_) {
      all.push_back(connection);
    }
    return all;
  }

  ServerOptions options_;
  KeyTable table_;
  std::vector<tcp::acceptor> acceptors_;
  std::uint16_t port_;
  asio::steady_timer accept_timer_;
  std::array<char, 64 * 1024> scratch_{};
  std::unordered_map<KeyTable::WaiterId, std::shared_ptr<Connection>> connections_;
  KeyTable::WaiterId next_id_ = 0;
  std::function<void(int)> machine_gone_;
  std::vector<int> gone_machines_;  // before anybody wanted to know
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

void Server::set(const std::string& key, std::string value) {
  impl_->set(key, std::move(value));
}

void Server::set_if_absent(const std::string& key, std::string value) {
  impl_->set_if_absent(key, std::move(value));
}

void Server::forget_workers() {
  impl_->forget_workers();
}

void Server::on_machine_gone(std::function<void(int machine_rank)> callback) {
  impl_->on_machine_gone(std::move(callback));
}

void Server::stop() {
  impl_->stop();
}

}  // namespace acc::rendezvous
