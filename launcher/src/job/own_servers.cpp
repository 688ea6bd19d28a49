// SPDX-License-Identifier: Apache-2.0
#include "job/own_servers.hpp"

#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "job/rounds.hpp"
#include "plan/draft.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher::job {
namespace {

/// Returns the token of the job; empty: there is none. Read here and not by the plan: `explain`
/// prints the plan.
std::optional<rendezvous::Tokens> tokens_of(const LaunchPlan& plan) {
  if (std::string token = process_variable(kTokenVariable).value_or(""); !token.empty()) {
    return rendezvous::Tokens({std::move(token)});
  }
  if (auto tokens = rendezvous::tokens_of_environment()) {
    return tokens;
  }
  if (plan.settings.boolean("secure"_key)) {
    throw Error(Errc::config,
                "--secure needs a token: set ACC_RENDEZVOUS_TOKEN_FILE to a file with the same "
                "token on every machine, or let acclaunch start the machines");
  }
  return std::nullopt;
}

}  // namespace

/// The store of a round is for one job, as is the server of static ranks, which includes it. A
/// server of c10d may serve other run ids too, if the token is not for one job. The certificate
/// authority concerns a daemon only.
JobSecurity::JobSecurity(const LaunchPlan& plan) {
  if (plan.settings.boolean("secure"_key) && plan.settings.boolean("insecure"_key)) {
    throw Error(Errc::invalid_argument,
                "--secure and --insecure contradict each other; give one of them");
  }
  const auto tokens = tokens_of(plan);
  if (!tokens) {
    return;
  }
  const bool is_for_one_job = ranks_are_given(plan) || tokens->is_for_one_job();
  store_server = rendezvous::ServerSecurity::make(tokens, {}, plan.rendezvous.run_id);
  rendezvous_server = is_for_one_job ? store_server : rendezvous::ServerSecurity::make(tokens, {});
  store_client = rendezvous::ClientSecurity::make(*tokens, {});
  rendezvous_client =
      rendezvous::ClientSecurity::make(*tokens, rendezvous::client_files_of_environment());
}

void OwnServers::serve_rendezvous(const std::vector<std::string>& hosts,
                                  const std::string& address) {
  rendezvous_.emplace(
      io_, listen(hosts, plan_.rendezvous.port, address),
      rendezvous::ServerOptions{.board = board_, .security = security_.rendezvous_server});
}

void OwnServers::open_status_port() {
  if (!status_port_) {
    status_port_ =
        job::open_status_port(io_, plan_, print_line_, board_, security_.rendezvous_server);
  }
}

std::uint16_t OwnServers::serve_store(const std::vector<std::string>& hosts,
                                      const std::string& address) {
  // On a further connection the store stays: a round with its port may have been formed.
  if (stores_.empty() || hosts != store_hosts_) {
    store_hosts_ = hosts;
    renew_store(address, /*keeps_last=*/false);
  }
  return stores_.back()->port();
}

void OwnServers::renew_store(const std::string& address, bool keeps_last) {
  if (!keeps_last) {
    stores_.clear();
  }
  if (!ranks_are_given(plan_)) {
    stores_.push_back(std::make_unique<rendezvous::Server>(
        io_, listen(store_hosts_, 0, address),
        rendezvous::ServerOptions{.forms_rounds = false, .security = security_.store_server}));
  } else if (rendezvous_) {
    rendezvous_->renew_store();
  }
}

/// Listens on a port at all `hosts`, and warns once if that includes all interfaces.
std::vector<rendezvous::Listener> OwnServers::listen(const std::vector<std::string>& hosts,
                                                     std::uint16_t port,
                                                     const std::string& address) {
  std::vector<rendezvous::Listener> listeners = rendezvous::listen_on(hosts, port);
  if (!security_.rendezvous_server) {
    check_open(listeners, address);
  }
  return listeners;
}

/// Without a token, refuses listeners that other machines can reach, unless ranks are static or the
/// user has waived the token; then warns once.
void OwnServers::check_open(const std::vector<rendezvous::Listener>& listeners,
                            const std::string& address) {
  const auto open = std::ranges::find(listeners, true, &rendezvous::Listener::is_open);
  const bool is_waived = plan_.settings.boolean("insecure"_key);
  if (open == listeners.end()) {
    return;
  }
  if (!ranks_are_given(plan_) && !is_waived) {
    throw Error(Errc::config,
                rendezvous::warning_of_open(open->address) +
                    ". Set ACC_RENDEZVOUS_TOKEN_FILE to a file with a token on every machine, or "
                    "give --insecure");
  }
  std::string warning = warning_of_all_interfaces(listeners, address);
  if (warning.empty() && !is_waived) {
    warning = rendezvous::warning_of_open(open->address) + "; or use --secure";
  }
  if (!warning.empty() && !std::exchange(has_warned_, true)) {
    print_line_(warning);
  }
}

void OwnServers::close() {
  for (const auto& store : stores_) {
    store->stop();
  }
  if (rendezvous_) {
    rendezvous_->stop();
  }
  if (status_port_) {
    status_port_->stop();
  }
}

std::unique_ptr<rendezvous::Server> open_status_port(
    boost::asio::io_context& io, const LaunchPlan& plan,
    const std::function<void(const std::string&)>& say, std::shared_ptr<rendezvous::Board> board,
    std::shared_ptr<const rendezvous::ServerSecurity> security) {
  const auto endpoint = plan::status_endpoint(plan.settings);
  if (!endpoint) {
    return nullptr;
  }
  try {
    std::vector<rendezvous::Listener> listeners =
        rendezvous::listen_on({endpoint->host}, endpoint->port);
    std::string text = std::string("the job can be watched at ") + (security ? "https" : "http") +
                       "://" + listeners.front().address;
    if (security) {
      text += ", with a token";
    } else if (listeners.front().is_open) {
      text += ", by everybody who can connect to it";
    }
    auto port = std::make_unique<rendezvous::Server>(
        io, std::move(listeners),
        rendezvous::ServerOptions{.forms_rounds = false,
                                  .serves_store = false,
                                  .board = std::move(board),
                                  .security = std::move(security)});
    if (endpoint->port == 0 || !plan.is_quiet) {  // who chose a port knows it
      say(text);
    }
    return port;
  } catch (const Error& error) {
    throw Error(Errc::config, std::string("--status_port: ") + error.what());
  }
}

}  // namespace acc::launcher::job
