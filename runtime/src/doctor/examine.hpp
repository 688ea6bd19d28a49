#pragma once

#include "acc/plugins/sharding_settings.hpp"
#include "doctor/facts.hpp"

#include <memory>
#include <string>

namespace acc::rendezvous {
class Store;
}

namespace acc::doctor {

/// All machines tell of themselves, look at each other and measure every pair. Collective over the
/// machines: `settings.identity` has one rank a machine. Each step has a limit, so that a machine
/// that is frozen, or a port that is blocked, is found and not waited for. `own` is complete.
/// Complete on machine 0; the others have only what they saw. Throws Error where the store is lost.
Examination examine(const plugins::RuntimeSettings& settings,
                    const std::shared_ptr<rendezvous::Store>& store, const MachineFacts& own);

}  // namespace acc::doctor
