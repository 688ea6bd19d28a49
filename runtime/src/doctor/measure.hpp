#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <memory>
#include <string>

namespace acc::rendezvous {
class Store;
}

namespace acc::doctor {

struct Figures {
  double latency_us = 0;
  double bandwidth_gbps = 0;
};

/// How long each step of a pair's collectives may take.
constexpr std::chrono::seconds kCollectiveLimit{5};

/// Makes a process group of two machines on the host, as a job would between hosts, and times its
/// collectives; about half a second on a sound link. Collective over the two: `settings` says which
/// of them this is, one rank a machine; `name` is used once. Throws Error when the other does not
/// come, or a step takes longer than its limit.
Figures measure_pair(plugins::RuntimeSettings settings,
                     const std::shared_ptr<rendezvous::Store>& store, const std::string& name,
                     int a, int b);

}  // namespace acc::doctor
