// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/settings/sharding_settings.hpp"
#include "collectives/device_route.hpp"
#include "collectives/group_spec.hpp"
#include "device/backend.hpp"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// Prefix of the keys that component `user` writes to the job's store. It is different for each
/// attempt of the job, and a process that does not have the job's secret cannot guess it.
std::string store_prefix(const settings::WorkerIdentity& identity, std::string_view user);

/// Connects to the job's store at MASTER_ADDR:MASTER_PORT. The returned store adds this attempt's
/// key prefix, and the number of the runtime among those of the process. Null if the job has one
/// rank. Throws if the store cannot be reached within 60 s. stop: ends the calls of the store and
/// of its clones with Error(connection).
std::unique_ptr<rendezvous::Store> connect_store(const settings::WorkerIdentity& identity,
                                                 int number = 0, std::stop_token stop = {});

/// The local address from which this machine sends to `host`; the job's other machines can reach
/// this machine at it. Connects a UDP socket, which sends no packet. Throws Error(connection) if
/// the name does not resolve or there is no route.
std::string address_towards(const std::string& host, std::uint16_t port);

/// Makes the process groups of one rank. The path of GPU memory (NCCL or staging) is decided once
/// for the whole job, from the hardware that every rank publishes in the store.
class GroupFactory {
 public:
  /// Collective over the job's ranks if the device is a GPU. `store` is null if the job has one
  /// rank; `backend` is null on the CPU. Both outlive the groups.
  /// check: GroupSpec::check.
  GroupFactory(const settings::RuntimeSettings& settings, rendezvous::Store* store,
               device::DevicePtr device, device::Backend* backend,
               std::function<void()> check = {});

  /// Makes the process group of `ranks` (global, ascending, this rank among them) for memory of the
  /// device:
  ///  - one rank: SoloGroup, without communication;
  ///  - all ranks on one host: ShmGroup;
  ///  - the same number of ranks, at least two, on each of several hosts: HierarchicalGroup, which
  ///    uses shared memory within a host and Gloo between hosts;
  ///  - otherwise: GlooGroup.
  /// A host is one node_rank: two launches on one machine count as two hosts. On a GPU, this host
  /// group is wrapped by StagedGroup, or used next to NCCL for scalars, barriers and failure
  /// detection. `kind` (such as "shard") is part of the store keys and must differ between
  /// groups with the same first rank. Collective over `ranks`. With `parent`, a group made by this
  /// factory, collective over all ranks of `parent`, each of which makes the part that it belongs
  /// to.
  std::shared_ptr<ProcessGroup> make(const std::vector<int>& ranks, const std::string& kind,
                                     ProcessGroup* parent = nullptr) const;

  /// How GPU memory moves between ranks. Meaningless on the CPU and for one rank.
  [[nodiscard]] const DeviceRoute& route() const noexcept { return route_; }

 private:
  [[nodiscard]] DeviceRoute agree_on_route() const;
  [[nodiscard]] std::shared_ptr<ProcessGroup> make_host_group(GroupSpec spec) const;

  const settings::RuntimeSettings& settings_;
  rendezvous::Store* store_;
  device::DevicePtr device_;
  device::Backend* backend_;
  std::function<void()> check_;
  DeviceRoute route_;
  std::shared_ptr<WaitBoard> board_;  ///< shared by all groups made here; null for one rank
};

}  // namespace acc::collectives
