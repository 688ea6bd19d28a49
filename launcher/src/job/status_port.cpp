// SPDX-License-Identifier: Apache-2.0
#include "job/status_port.hpp"

#include "acc/base/error.hpp"
#include "plan/draft.hpp"

#include <utility>

namespace acc::launcher::job {

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
