// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"
#include "doctor/facts.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::doctor {

/// Schedule of pairs (a < b) of `count` machines by the circle method: every pair occurs once, and
/// no machine is in two pairs of a round. Has `count` - 1 rounds; if `count` is odd, `count`
/// rounds, in each of which one machine rests.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count);

/// Exchanges the machines' facts, lets each machine probe the others, and measures every pair.
/// Collective over the machines: `settings.identity` has one rank per machine. Each step has a time
/// limit, so a frozen machine or a blocked port is reported instead of waited for. `own`: the
/// complete facts of this machine. The result is complete on machine 0; on other machines it has
/// only what they measured themselves. Throws Error if the connection to the store is lost.
Examination examine(const settings::RuntimeSettings& settings,
                    const std::shared_ptr<rendezvous::Store>& store, const MachineFacts& own);

}  // namespace acc::doctor
