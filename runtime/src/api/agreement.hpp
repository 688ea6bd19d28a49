// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <chrono>
#include <cstdint>

// Agreement between ranks, at the start of a job. Every rank decides which collectives it issues
// from its own settings; if two ranks had different settings, they would wait for each other
// forever or mix up data. So differences are found here, before the first collective, through the
// store. (Later checks: model/declaration.hpp compares the declared models; the process groups
// compare the collectives.)

namespace acc::rendezvous {
class Store;
}

namespace acc::detail {

/// Compares the settings of all ranks. Collective over the job's ranks. If a rank differs from rank
/// 0, all ranks throw Error(disagreement) that names the rank, the setting and both values.
void check_agreement(const settings::RuntimeSettings& settings, rendezvous::Store& store);

/// Returns a number that rank 0 chooses, the same on every rank: in the upper half the number of
/// the round that it knows, in the lower half a random one. store: may be null for one rank. Throws
/// Error(protocol) if the store's value is not such a number.
std::uint64_t agree_on_number(const settings::WorkerIdentity& identity, std::uint32_t round,
                              std::chrono::milliseconds timeout, rendezvous::Store* store);

}  // namespace acc::detail
