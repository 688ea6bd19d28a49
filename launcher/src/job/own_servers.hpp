// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/board.hpp"
#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/security.hpp"
#include "acc/rendezvous/server.hpp"

#include <boost/asio/io_context.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc::launcher::job {

/// Opens the port of --status_port, at which HTTP clients see `board`, and says its address; null
/// if the settings have none. `security`: null if everybody may look. Throws Error(config) if the
/// port is in use.
std::unique_ptr<rendezvous::Server> open_status_port(
    boost::asio::io_context& io, const LaunchPlan& plan,
    const std::function<void(const std::string&)>& say, std::shared_ptr<rendezvous::Board> board,
    std::shared_ptr<const rendezvous::ServerSecurity> security = nullptr);

/// What servers and clients of a job prove to each other. Null pointers: no token.
struct JobSecurity {
  explicit JobSecurity(const LaunchPlan& plan);

  std::shared_ptr<const rendezvous::ServerSecurity> rendezvous_server{};
  std::shared_ptr<const rendezvous::ServerSecurity> store_server{};
  std::shared_ptr<const rendezvous::ClientSecurity> rendezvous_client{};
  std::shared_ptr<const rendezvous::ClientSecurity> store_client{};
};

/// The servers that this machine runs for a job on several machines: the rendezvous, with the port
/// of --status_port, and the store of its workers. With static ranks the rendezvous is the store.
///
/// Servers listen only on the interfaces at which the other machines reach them. If these are
/// unknown, they listen on all interfaces and print a warning.
class OwnServers {
 public:
  /// Keeps the references.
  OwnServers(boost::asio::io_context& io, const LaunchPlan& plan, const JobSecurity& security,
             std::function<void(const std::string&)> say)
      : io_(io), plan_(plan), security_(security), print_line_(std::move(say)) {}

  /// Serves the rendezvous at the plan's port of `hosts`. `address`: the configured one, for
  /// messages. Throws Error.
  void serve_rendezvous(const std::vector<std::string>& hosts, const std::string& address);
  /// Opens the port of --status_port, if it is given and not open.
  void open_status_port();
  /// Returns the port of the store. A new one is started if there is none at `hosts`.
  std::uint16_t serve_store(const std::vector<std::string>& hosts, const std::string& address);
  /// Starts an empty store for the next round, so that its workers see no keys that workers of the
  /// last round set or still send. keeps_last: those go on for a while, and the stores of their
  /// rounds stay until a call without it.
  void renew_store(const std::string& address, bool keeps_last);
  void close();

  /// Returns null if this machine does not serve the rendezvous.
  [[nodiscard]] rendezvous::Server* rendezvous() { return rendezvous_ ? &*rendezvous_ : nullptr; }
  [[nodiscard]] bool serves_rendezvous() const { return rendezvous_.has_value(); }
  [[nodiscard]] bool has_status_port() const { return status_port_ != nullptr; }
  /// Returns the port of this machine's store in the current round.
  [[nodiscard]] std::uint16_t store_port() const {
    return stores_.empty() ? plan_.rendezvous.port : stores_.back()->port();
  }

 private:
  std::vector<rendezvous::Listener> listen(const std::vector<std::string>& hosts,
                                           std::uint16_t port, const std::string& address);
  void check_open(const std::vector<rendezvous::Listener>& listeners, const std::string& address);

  boost::asio::io_context& io_;
  const LaunchPlan& plan_;
  const JobSecurity& security_;
  std::function<void(const std::string&)> print_line_;
  /// What the rendezvous and the status port show.
  std::shared_ptr<rendezvous::Board> board_ = std::make_shared<rendezvous::Board>();
  std::unique_ptr<rendezvous::Server> status_port_;
  std::optional<rendezvous::Server> rendezvous_;
  /// c10d only. The last one is that of the current round.
  std::vector<std::unique_ptr<rendezvous::Server>> stores_;
  std::vector<std::string> store_hosts_;  ///< addresses on which they listen
  bool has_warned_ = false;               ///< about listening on all interfaces
};

}  // namespace acc::launcher::job
