// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/sharding_settings.hpp"
#include "device/device.hpp"
#include "sharding/groups.hpp"
#include "state_dict/snapshot_file.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace acc::state_dict {

/// The exchange of snapshots between machines: each rank sends its newest one to the rank with its
/// local rank on the next machine, whose file keeps it, and gets one from the machine before. It
/// has process groups of its own, for the thread that makes snapshots.
class NeighbourCopy {
 public:
  using Clock = std::chrono::steady_clock;

  /// Collective over the job's ranks. store: outlives this object. check: GroupSpec::check, called
  /// on the other thread too. Null if there is one machine, or if machines have different numbers
  /// of ranks; why: the reason of the latter.
  static std::unique_ptr<NeighbourCopy> make(const settings::RuntimeSettings& settings,
                                             const sharding::Groups& groups, device::Device& device,
                                             rendezvous::Store* store,
                                             const std::function<void()>& check, std::string& why);

  /// True if whole snapshots are sent: no replica on another machine has the same values.
  [[nodiscard]] bool sends_all() const noexcept { return !has_replica_; }
  /// Sends the snapshot in a place of `file`, or says that there is none (-1), and writes the one
  /// that arrives. Where a replica on another machine has the same values, only the others are
  /// sent. Returns the reason if something has failed: nothing is exchanged any more then, and the
  /// older copies stay.
  std::optional<std::string> exchange(const SnapshotFile& file, int place) noexcept;
  /// An exchange will follow soon.
  void moved() noexcept { moved_at_ = Clock::now().time_since_epoch().count(); }
  /// Time at which bytes have moved last. Any thread.
  [[nodiscard]] Clock::time_point moved_at() const noexcept {
    return Clock::time_point(Clock::duration(moved_at_.load()));
  }
  /// Reason why the job has failed, if it has. Any thread.
  [[nodiscard]] std::optional<std::string> job_failure() const { return world_->failure(); }
  /// Ends an exchange that another thread waits for: its peer may be on a machine that is lost
  /// without a word. Soon afterwards `exchange` returns.
  void stop(const std::string& reason) const noexcept;

 private:
  /// One direction: to the next machine, or from the one before.
  struct Lane {
    std::shared_ptr<collectives::ProcessGroup> group;  ///< of the two ranks
    int root = 0;                                      ///< of the sender, in the group
    int sender = 0;                                    ///< its rank in the job
  };
  struct Outgoing;
  void exchange_all(const SnapshotFile& file, int place);
  [[nodiscard]] Outgoing outgoing(const SnapshotFile& file, int place) const;
  void limit(std::size_t nbytes, Clock::time_point begun);

  NeighbourCopy() = default;
  std::shared_ptr<collectives::ProcessGroup> world_;  ///< of the training
  device::DevicePtr device_;
  std::unique_ptr<rendezvous::Store> store_;
  settings::RuntimeSettings settings_;
  Lane out_;
  Lane in_;
  bool has_replica_ = false;  ///< on another machine
  std::int64_t rate_ = 0;     ///< bytes per second; 0: no limit
  std::atomic<Clock::rep> moved_at_ = 0;
  std::optional<std::string> failure_;
};

}  // namespace acc::state_dict
