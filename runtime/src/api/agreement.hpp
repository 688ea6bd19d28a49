#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::detail {

/// What all ranks of a job must have alike: they decide by it which collectives they call. By the
/// name that a message gives it.
std::vector<std::pair<std::string, std::string>> agreed_terms(
    const plugins::RuntimeSettings& settings);

/// Collective over the job's ranks. Where a rank differs from rank 0, all throw Error(config) that
/// names the rank, the term and both values.
void check_agreement(const plugins::RuntimeSettings& settings, rendezvous::Store& store);

/// A random number of rank 0's, on every rank. `store` may be null for one rank.
std::uint32_t agree_on_number(const plugins::WorkerIdentity& identity,
                              std::chrono::milliseconds timeout, rendezvous::Store* store);

}  // namespace acc::detail
