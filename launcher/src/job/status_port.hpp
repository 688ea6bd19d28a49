// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/board.hpp"
#include "acc/rendezvous/server.hpp"

#include <boost/asio/io_context.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace acc::launcher::job {

/// Opens the port of --status_port, at which HTTP clients see `board`, and says its address; null
/// if the settings have none. `security`: null if everybody may look. Throws Error(config) if the
/// port is in use.
std::unique_ptr<rendezvous::Server> open_status_port(
    boost::asio::io_context& io, const LaunchPlan& plan,
    const std::function<void(const std::string&)>& say, std::shared_ptr<rendezvous::Board> board,
    std::shared_ptr<const rendezvous::ServerSecurity> security = nullptr);

}  // namespace acc::launcher::job
