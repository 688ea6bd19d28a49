#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/plugins/sharding_settings.hpp"
#include "acc/plugins/strategy.hpp"
#include "collectives/device_route.hpp"
#include "device/open_device.hpp"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace acc::flight {
class Recorder;
}
namespace acc::rendezvous {
class Store;
}

namespace acc::sharding {

/// Which ranks this rank shards with and which hold the same shard, as a pure function of the
/// settings. shard_size * replicate_size = world_size; shard groups are consecutive ranks, a
/// replicate group the ranks with equal rank mod shard_size (FSDP's row-major (replica, shard)
/// mesh).
struct GroupPlan {
  std::vector<int> world;
  std::vector<int> shard;
  std::vector<int> replicate;
  std::vector<int> secondary;  ///< ranks that share a secondary weight copy; empty: none

  [[nodiscard]] int shard_size() const { return static_cast<int>(shard.size()); }
  [[nodiscard]] int replicate_size() const { return static_cast<int>(replicate.size()); }
};

/// Throws Error(config) when a size does not divide.
GroupPlan plan_groups(const plugins::RuntimeSettings& settings);

/// The process groups of one rank. `shard` may be the same object as `world`.
struct Groups {
  GroupPlan plan;
  collectives::DeviceRoute route;  ///< on several GPUs: who moves their memory
  std::shared_ptr<collectives::ProcessGroup> world;
  std::shared_ptr<collectives::ProcessGroup> shard;
  std::shared_ptr<collectives::ProcessGroup> replicate;  ///< null when replicate_size is 1
  /// hpZ's, or that of reshard_after_forward as a size; null: none
  std::shared_ptr<collectives::ProcessGroup> secondary;
  /// What is told of every collective, and of the unit it is for; null where nobody records.
  std::shared_ptr<flight::Recorder> recorder;

  using Wrap = std::function<std::shared_ptr<collectives::ProcessGroup>(
      std::shared_ptr<collectives::ProcessGroup>, const char* name, const std::vector<int>& ranks)>;
  /// Puts `wrap(group, name, ranks)` in the place of each group, once a group.
  void replace(const Wrap& wrap);
  /// From now on `to` is told.
  void record(std::shared_ptr<flight::Recorder> to);
  /// Ends all groups, so that every rank that meets this one hears `reason`, the first cause.
  void abort(const std::string& reason) const noexcept;
};

/// Figures of all ranks, [world size * values.size()], rank-major, on every rank. Goes through
/// memory of `device`. values: [the same count on all ranks]. Collective.
std::vector<double> all_gather(const Groups& groups, device::Device& device,
                               std::span<const double> values);

/// Collective over the job's ranks. `store` outlives the groups; null for one rank.
Groups make_groups(const plugins::RuntimeSettings& settings, rendezvous::Store* store,
                   const device::Opened& place);

}  // namespace acc::sharding
