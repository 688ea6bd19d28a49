// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/own_process.hpp"
#include "acc/collectives/process_group.hpp"
#include "acc/settings/sharding_settings.hpp"
#include "acc/settings/strategy.hpp"
#include "collectives/device_route.hpp"
#include "device/open_device.hpp"

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::flight {
class Recorder;
}
namespace acc::rendezvous {
class Store;
}

namespace acc::sharding {

/// The groups that this rank belongs to, as lists of global ranks; a pure function of the settings.
/// shard_size * replicate_size = world_size. A shard group consists of consecutive ranks; a
/// replicate group consists of the ranks with equal rank mod shard_size (FSDP's row-major (replica,
/// shard) mesh; hybrid sharding: arXiv 2304.11277, section 3.2.2).
struct GroupPlan {
  std::vector<int> world;
  std::vector<int> shard;      ///< ranks that together hold one copy of the parameters
  std::vector<int> replicate;  ///< ranks that hold the same shard
  std::vector<int> secondary;  ///< ranks that share a secondary copy of the weights; empty: none
  settings::StrategySwitches on = {};  ///< of the strategy that the groups serve

  [[nodiscard]] int shard_size() const { return static_cast<int>(shard.size()); }
  /// Number of ranks with different optimizer state: rank r has that of rank r % state_shards().
  [[nodiscard]] int state_shards() const { return on.shard_optimizer ? shard_size() : 1; }
  [[nodiscard]] int replicate_size() const { return static_cast<int>(replicate.size()); }
};

/// Throws Error(config) if a group size does not divide the number of ranks, or if the strategy
/// does not serve a setting of the groups.
GroupPlan plan_groups(const settings::RuntimeSettings& settings);

/// Messages that the groups of a job send to other machines.
struct Reach {
  bool weights = false;    ///< gathers of shards
  bool gradients = false;  ///< reductions
  bool by_nccl = false;    ///< from the memory of GPUs
};

/// Returns the names of the settings of quantised communication that are given and have no effect,
/// because nothing is sent that they are for. Throws Error(not_supported) for those that NCCL does
/// not serve.
std::string idle_quantization(const settings::ShardingSettings& sharding, const Reach& reach);

/// The process groups of one rank. In a child made by fork they refuse everything. Groups of the
/// same ranks are the same object.
struct Groups {
  OwnProcess owner;
  GroupPlan plan;
  collectives::DeviceRoute route;  ///< with GPUs: how their memory is sent (NCCL or via the host)
  std::shared_ptr<collectives::ProcessGroup> world;
  std::shared_ptr<collectives::ProcessGroup> shard;
  /// Null when replicate_size is 1, unless the number of machines may change
  std::shared_ptr<collectives::ProcessGroup> replicate;
  /// Group of hpZ, or of reshard_after_forward as a size; null: none
  std::shared_ptr<collectives::ProcessGroup> secondary;
  /// Flight recorder: receives every collective and the unit that it is for. Null: no recording.
  std::shared_ptr<flight::Recorder> recorder;

  /// Bytes that this rank has sent to other machines, over all groups.
  [[nodiscard]] collectives::SentBytes sent() const;
  /// Throws Error(invalid_argument) in a child made by fork.
  void check_process() const;
  /// Records all later collectives with `to`, and in the timeline of `traced` if it is given
  /// (collectives::record_group).
  void record(std::shared_ptr<flight::Recorder> to, const device::DevicePtr& traced);
  /// Aborts all groups, so that every rank that shares a group with this one fails with `reason`.
  /// code: peer_lost if this rank leaves the job.
  void abort(const std::string& reason, Errc code = Errc::collective) const noexcept;
  /// Gives up the groups inside those of `record`: every call throws Error(peer_lost) until
  /// `renew`.
  void give_up() const;
  /// Puts groups, which are not recorded, in the places of those with the same names. Their plan is
  /// the same, or has another number of machines.
  void renew(const Groups& fresh);
  /// The same, with this rank and the place in the program in the reason. A rank without peers goes
  /// on.
  void abort_in_program(std::string_view place, const char* error) const noexcept;
  /// Aborts all groups if the error is one of a group or of the device. Errors of the program
  /// (invalid_argument, config) abort nothing: no collective has been issued.
  void abort_after(const Error& error) const noexcept;
};

/// Runs a call that uses process groups and the device. If it fails there, every group of this rank
/// is aborted with the reason, so that all peers, whichever group they wait in, report the first
/// cause.
template <typename Call>
decltype(auto) guarded(const Groups& groups, const Call& call) {
  groups.check_process();
  try {
    return call();
  } catch (const Error& error) {
    groups.abort_after(error);
    throw;
  } catch (const std::bad_alloc&) {
    groups.abort_after(Error(Errc::out_of_memory, "out of memory"));
    throw;
  }
}

/// Calls a function of the program that a collective call needs. If it throws, the groups are
/// aborted, so that the peers fail too: "rank 1 failed in <what>: <error>".
template <typename Call>
decltype(auto) with_program(const Groups& groups, std::string_view what, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    groups.abort_in_program(what, error.what());
    throw;
  } catch (...) {
    groups.abort_in_program(what, "an exception of an unknown type");
    throw;
  }
}

/// Returns the values of all ranks, [world size * values.size()] in rank order, on every rank.
/// values: the same number on all ranks. The values pass through memory of `device`. Collective.
std::vector<double> all_gather(const Groups& groups, device::Device& device,
                               std::span<const double> values);
/// Returns the sums of numbers over the shards of a copy, on every rank: of those of this rank's
/// shard group, in rank order. Collective.
std::vector<double> sum_over_shards(const Groups& groups, device::Device& device,
                                    std::span<const double> values);

/// Makes the groups of `plan_groups`. Collective over the job's ranks. store: outlives the groups;
/// null for one rank.
/// check: called while the ranks connect; throws to give up.
Groups make_groups(const settings::RuntimeSettings& settings, rendezvous::Store* store,
                   const device::Opened& place, const std::function<void()>& check = {});

}  // namespace acc::sharding
