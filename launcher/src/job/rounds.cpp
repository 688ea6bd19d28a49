// SPDX-License-Identifier: Apache-2.0
#include "job/rounds.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace acc::launcher::job {

std::unique_ptr<Rounds> make_rounds(boost::asio::io_context& io, const LaunchPlan& plan,
                                    std::string host, Rounds::Events events) {
  const bool alone =
      plan.layout.num_machines == 1 || plan.rendezvous.backend == RendezvousPlan::Backend::none;
  return (alone ? rounds_alone : rounds_together)(io, plan, std::move(host), std::move(events));
}

std::string warning_of_all_interfaces(const std::vector<rendezvous::Listener>& listeners,
                                      const std::string& address) {
  const auto everywhere = std::ranges::find(listeners, true, &rendezvous::Listener::is_everywhere);
  return everywhere == listeners.end()
             ? ""
             : "listening on all interfaces, because " + address +
                   " does not identify the interface that the other machines connect to: " +
                   rendezvous::warning_of_open(everywhere->address);
}

Assignment assignment(const LaunchPlan& plan, const rendezvous::Round& round,
                      std::optional<std::uint16_t> tunnel) {
  const auto& sizes = round.local_world_sizes;
  return {.machine_rank = round.machine_rank,
          .num_machines = round.num_machines(),
          .first_rank = std::accumulate(sizes.begin(), sizes.begin() + round.machine_rank, 0),
          .local_world_size = plan.layout.local_world_size,
          .local_world_sizes = sizes,
          .world_size = std::accumulate(sizes.begin(), sizes.end(), 0),
          .first_role_rank = round.first_role_rank,
          .role_world_size = round.role_world_size,
          .master_addr = tunnel ? "127.0.0.1" : round.store_host,
          .master_port = tunnel.value_or(round.store_port),
          .run_id = plan.rendezvous.run_id,
          .round = round.round,
          .restart_count = round.restart_count,
          .secret = round.secret};
}

}  // namespace acc::launcher::job
