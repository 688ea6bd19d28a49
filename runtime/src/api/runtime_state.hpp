// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/membership_page.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/runtime.hpp"
#include "api/activation_store.hpp"
#include "api/round_watch.hpp"
#include "data/record.hpp"
#include "device/open_device.hpp"
#include "sharding/groups.hpp"
#include "sharding/late_doubles.hpp"
#include "state_dict/model_files.hpp"
#include "state_dict/snapshot_memory.hpp"
#include "trace/tracer.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::detail {

class BackgroundSave;

/// Connects to the store through which the ranks find each other; null for one rank. stop: ends its
/// calls.
using ConnectStore = std::function<std::shared_ptr<rendezvous::Store>(
    const settings::WorkerIdentity& identity, std::stop_token stop)>;

/// State of a folder of checkpoints when this job last used it.
struct KnownSeries {
  std::optional<std::int64_t> last;  ///< highest number of a checkpoint; -1: empty folder
  std::string warned;                ///< last warning about checkpoints that cannot be removed
};

/// State of one process of a job: settings, device, store and process groups. Shared by the Runtime
/// and its models.
class RuntimeState {
  /// Refuses to be made in a child of a rank. The first member, so that nothing else is made
  /// before.
  class Membership {
   public:
    explicit Membership(const settings::WorkerIdentity& identity);
    ~Membership();
    Membership(const Membership&) = delete;
    Membership& operator=(const Membership&) = delete;
  };
  Membership membership_;

 public:
  /// Checks and compares settings, opens the device and makes the groups; collective. connect:
  /// called again for each epoch of the membership.
  RuntimeState(const settings::RuntimeSettings& settings, ConnectStore connect);
  ~RuntimeState();

  settings::RuntimeSettings settings;
  device::Opened compute;
  std::unique_ptr<RoundWatch> round_watch;   ///< of `store`; null: none
  std::shared_ptr<rendezvous::Store> store;  ///< null for one rank
  sharding::Groups groups;
  std::shared_ptr<trace::Tracer> tracer;  ///< null: no trace
  // For `Runtime::issue_mean`; empty until it is used:
  device::MemoryPtr sum;
  std::optional<sharding::LateReader> reader;
  std::shared_ptr<ActivationStore> activations;  ///< null until something is kept
  /// Number of the next save, part of its temporary names: the same on all ranks, and different
  /// from those of earlier saves and, being random at first, of other jobs.
  std::uint32_t save_id = 0;
  /// Number of this attempt of the job, the same on all ranks, and larger than those of earlier
  /// rounds.
  std::uint64_t history = 0;
  /// What this rank records of the samples that it uses. Orders made with the runtime share it.
  std::shared_ptr<data::Recording> recording = std::make_shared<data::Recording>();
  /// Memory for snapshots that outlives this process; null: none.
  std::unique_ptr<state_dict::SnapshotMemory> snapshots;
  std::map<std::string, KnownSeries> series;      ///< on rank 0, by absolute path of the folder
  std::vector<std::weak_ptr<ModelState>> models;  ///< of this runtime

  /// After Error(peer_lost): waits until the launcher has replaced the ranks that are gone, makes
  /// all groups anew, and brings the model and its optimizer back to their initial values, at the
  /// same addresses. The new ranks make theirs meanwhile. Begins again while further ranks are
  /// lost. Throws Error(not_supported) if the launcher replaces no ranks or this job cannot rejoin,
  /// Error(timeout) if none was replaced in time.
  void rejoin();
  /// Returns the model that `rejoin` would renew; null: none. Throws Error(not_supported) if it
  /// would.
  std::shared_ptr<ModelState> check_rejoin();
  /// True if the launcher gives the ranks of processes that end to others.
  [[nodiscard]] bool replaces_ranks() const {
    return page_ && page_->changes() != MembershipPage::Changes::nothing;
  }
  /// True if the launcher has ended this epoch of an elastic job, and the ranks are to leave it.
  [[nodiscard]] bool leaves_epoch() const {
    return settings.elastic_replicas && page_->has_ended(epoch_);
  }
  /// True if it does, and this is the error of a call that failed because ranks are lost.
  [[nodiscard]] bool can_rejoin(const Error& error) const;

  /// Implements `Runtime::save`. existing: what to do if the directory exists.
  void save(const std::string& directory, std::span<const Trained> parts, const SavedState& state,
            checkpoint::Existing existing);
  /// Implements `Runtime::save_async`, when no save is in flight. committed: called on rank 0, on
  /// another thread, when the directory has its name; if it throws, the save has failed.
  void save_async(const std::string& directory, std::span<const Trained> parts,
                  const SavedState& state, checkpoint::Existing existing,
                  std::function<void()> committed = {});
  /// Waits for the save in flight, if there is one, and keeps its failure for `wait_save`.
  void end_save();
  /// Implements `Runtime::wait_save`.
  void wait_save();
  /// Implements `Runtime::saving`.
  [[nodiscard]] bool saving() const;
  /// Finalizes the models. Throws Error(invalid_argument) if there is none, or an optimizer belongs
  /// to another one.
  static std::vector<state_dict::Part> parts_of(std::span<const Trained> parts);

 private:
  std::unique_ptr<BackgroundSave> background_;     ///< null: no save was begun since `end_save`
  std::optional<std::uint32_t> last_background_;   ///< number of the save that it was last
  std::optional<std::string> background_failure_;  ///< not reported yet
  ConnectStore connect_;
  std::shared_ptr<MembershipPage> page_;  ///< null: the launcher has none
  /// The only epoch in which this runtime meets others; empty: the current one, and it may rejoin.
  std::optional<std::uint32_t> fixed_epoch_;
  void read_fixed_epoch();
  void open_page();
  [[nodiscard]] bool is_of_lost_rank(const Error& error) const;
  /// True if the ranks leave the epoch because a machine joins, as far as the launcher knows.
  [[nodiscard]] bool leaves_epoch_with_all() const {
    return leaves_epoch() && !page_->has_lost(epoch_);
  }
  void connect();
  void take_place(const MembershipPage::Meeting& meeting);
  std::uint32_t epoch_ = 0;
  std::shared_ptr<std::atomic<bool>> meets_;  ///< true until the ranks have met in this epoch
  std::function<void()> check_;               ///< GroupSpec::check of this epoch
  /// Meets the other ranks in the store and makes the groups; sets `store` and `save_id`. Begins
  /// again in the next epoch if ranks are lost meanwhile.
  [[nodiscard]] sharding::Groups meet();
  [[nodiscard]] sharding::Groups meet_in_epoch();
  /// Records from now on what the ranks of this epoch use.
  void begin_recording();
  void create_trace(int restart_count) const;
  void open_snapshots();
  /// Agrees on whether there are snapshots, and connects to those of other machines. Collective.
  void share_snapshots(const sharding::Groups& all);
};

/// Throws Error(not_supported) if a save with these settings gathers weights, which one beside the
/// training cannot.
void check_gathers_nothing(const settings::ShardingSettings& settings);

/// Throws Error(not_supported) if a CheckpointSeries cannot save in the way that these settings ask
/// for.
void check_series(const settings::ShardingSettings& settings);

/// Throws Error(not_supported) that lists the settings that this version or build does not support.
void check_supported(const settings::RuntimeSettings& settings);

}  // namespace acc::detail
