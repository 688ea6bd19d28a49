// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace acc::rendezvous {
class Store;
}

namespace acc::doctor {

/// Measured speed of a pair.
struct Measurements {
  double latency_us = 0;      ///< time of an all_reduce of one number
  double bandwidth_gbps = 0;  ///< Gbit/s per direction, both directions at once
};

/// Time limit for all collectives of a pair. Enough for a link of 1 Mbit/s.
constexpr std::chrono::seconds kMeasureLimit{8};

/// Makes a process group of machines `a` and `b` on host memory, as a job does between hosts, and
/// measures its collectives; takes about one second on a good link. Collective over the two
/// machines: `settings` has one rank per machine and says which one this is. `name` is the prefix
/// of the store keys and must be used only once. Throws Error if the other machine does not join,
/// or everything takes longer than `kMeasureLimit`. A thread that is still in a call then is
/// abandoned, so the program must end by `_Exit`.
Measurements measure_pair(settings::RuntimeSettings settings,
                          const std::shared_ptr<rendezvous::Store>& store, const std::string& name,
                          int a, int b);

}  // namespace acc::doctor
