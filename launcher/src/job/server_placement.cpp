// SPDX-License-Identifier: Apache-2.0
#include "job/server_placement.hpp"

#include <utility>

namespace acc::launcher::job {

ServerPlacement::ServerPlacement(Facts facts) : facts_(std::move(facts)) {
  if (facts_.ranks_are_given) {
    if (facts_.machine_rank == 0) {
      phase_ = placement::AsMachine0{};
    }
  } else if (facts_.meets_at_daemons) {
    return;
  } else if (facts_.is_host) {
    if (*facts_.is_host) {
      phase_ = placement::AsHost{};
    }
  } else if (facts_.is_own_address) {
    phase_ = placement::IfPortIsFree{};
  }
}

bool ServerPlacement::is_to_listen(Time now) {
  if (auto* follower = std::get_if<placement::TakesOver>(&phase_)) {
    follower->gone_since = follower->gone_since.value_or(now);
    return now >= *follower->gone_since + facts_.patience;
  }
  return is_here();
}

void ServerPlacement::rejoin() {
  if (is_here() && !must_serve()) {
    phase_ = placement::TakesOver{};
  }
}

std::string ServerPlacement::own_server() const {
  return facts_.server_hosts.front() == "*" ? "localhost" : facts_.server_hosts.front();
}

std::vector<std::string> ServerPlacement::store_hosts(const std::string& address) const {
  return address == facts_.local_address ? facts_.local_hosts
         : address == facts_.address     ? facts_.server_hosts
                                         : std::vector<std::string>{address};
}

}  // namespace acc::launcher::job
