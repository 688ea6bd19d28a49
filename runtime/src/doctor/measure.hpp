#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <chrono>
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

/// All of a pair's collectives: a link of 1 Mbit/s still makes it.
constexpr std::chrono::seconds kMeasureLimit{8};

/// Makes a process group of two machines on the host, as a job would between hosts, and times its
/// collectives; about a second on a sound link. Collective over the two: `settings` says which of
/// them this is, one rank a machine; `name` is used once. Throws Error when the other does not
/// come, or all of it takes longer than `kMeasureLimit`; a thread that is then still in a call is
/// left behind, and the program must end by `_Exit`.
Figures measure_pair(plugins::RuntimeSettings settings,
                     const std::shared_ptr<rendezvous::Store>& store, const std::string& name,
                     int a, int b);

}  // namespace acc::doctor
