#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/plugins/sharding_settings.hpp"
#include "collectives/device_route.hpp"
#include "collectives/group_spec.hpp"
#include "device/backend.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// What the keys of `user` begin with in the job's store: a name for this attempt alone, which who
/// does not have the job's secret cannot know.
std::string store_prefix(const plugins::WorkerIdentity& identity, std::string_view user);

/// The job's store at MASTER_ADDR:MASTER_PORT, with the keys of this attempt; null for one rank.
std::unique_ptr<rendezvous::Store> connect_store(const plugins::WorkerIdentity& identity);

/// The address under which this host reaches `host`, hence the job's others reach it; no packet is
/// sent. Throws Error(connection).
std::string address_towards(const std::string& host, std::uint16_t port);

/// Makes the process groups of one rank. What moves a GPU's memory is decided once, for the whole
/// job: every rank says in the store what it has.
class GroupFactory {
 public:
  /// On a GPU collective over the job's ranks. `store` and `backend` outlive the groups; null for
  /// one rank, and on the CPU.
  GroupFactory(const plugins::RuntimeSettings& settings, rendezvous::Store* store,
               device::DevicePtr device, device::Backend* backend);

  /// The process group of `ranks` (global, ascending, this rank among them), for memory of the
  /// device. One rank needs nobody. On the host it is built from what each pair can reach: shm on
  /// one host, gloo between hosts, both composed where hosts hold equally many each, and gloo alone
  /// where they do not; a host is one node_rank: two launches on one machine count as two. On a GPU
  /// that is what NCCL falls back on for figures, or the way itself (staged). `kind` parts groups
  /// of one rank from another in the store. Collective over `ranks`; with `parent`, a group made
  /// here, over all its ranks, each of which makes its own part.
  std::shared_ptr<ProcessGroup> make(const std::vector<int>& ranks, const std::string& kind,
                                     ProcessGroup* parent = nullptr) const;

  /// How a GPU's memory moves between ranks, and why; of no meaning on the CPU and for one rank.
  [[nodiscard]] const DeviceRoute& route() const noexcept { return route_; }

 private:
  [[nodiscard]] DeviceRoute agree_on_route() const;
  [[nodiscard]] std::shared_ptr<ProcessGroup> make_host_group(GroupSpec spec) const;

  const plugins::RuntimeSettings& settings_;
  rendezvous::Store* store_;
  device::DevicePtr device_;
  device::Backend* backend_;
  DeviceRoute route_;
  std::shared_ptr<WaitBoard> board_;  ///< of all groups made here; null for one rank
};

}  // namespace acc::collectives
