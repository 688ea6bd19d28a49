#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/plugins/sharding_settings.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// The job's store at MASTER_ADDR:MASTER_PORT, with the keys of this attempt; null for one rank.
std::unique_ptr<rendezvous::Store> connect_store(const plugins::WorkerIdentity& identity);

/// The process group of `ranks` (global, ascending, this rank among them), built from what each
/// pair can reach: shm on one host, gloo between hosts, both composed where hosts hold several
/// each. A host is one node_rank: two launches on one machine count as two. `kind` parts groups of
/// one rank from another in the store. Collective over `ranks`.
std::shared_ptr<ProcessGroup> make_group(const plugins::RuntimeSettings& settings,
                                         const std::vector<int>& ranks, const std::string& kind,
                                         rendezvous::Store* store);

}  // namespace acc::collectives
