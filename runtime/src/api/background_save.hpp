// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/rendezvous/store.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/snapshot.hpp"
#include "state_dict/snapshot_writer.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace acc::detail {

/// A save whose files a thread of this rank writes beside the training. The ranks meet in the job's
/// store, not in their process groups. Rank 0 begins, for which the others wait. Each rank counts
/// itself when it has written its files, with its error if it failed. Rank 0 waits for all, gives
/// the folder its name, and publishes the end, which all ranks read. Used by the thread that
/// trains.
class BackgroundSave {
 public:
  struct Plan {
    std::string directory;
    std::uint32_t id = 0;  ///< as SnapshotWriter's
    state_dict::Existing existing = state_dict::Existing::replace;
    state_dict::Snapshot snapshot;             ///< with copies of the values
    state_dict::Attempt attempt;               ///< has failed if they could not be copied
    std::unique_ptr<rendezvous::Store> store;  ///< of this save alone; null for one rank
    std::optional<std::uint32_t> previous;     ///< id of the save before this one
    std::function<void()> committed;  ///< called on rank 0 when the folder has its name; may throw
    /// Returns the reason if the job has failed. Called on any thread.
    std::function<std::optional<std::string>()> failure;
    std::chrono::milliseconds timeout{};  ///< for which rank 0 waits for the other ranks
  };
  /// Starts the thread.
  explicit BackgroundSave(Plan plan);
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Gives it up: it ends soon, on this rank without the others.
  void abandon() noexcept { abandoned_ = true; }
  /// True if `wait` returns at once.
  [[nodiscard]] bool has_ended() const;
  /// Waits until the checkpoint is complete or given up. Returns the reason if it is not complete,
  /// the same on all ranks while the job runs. Rank 0 shows the progress.
  std::optional<std::string> wait();
  [[nodiscard]] std::uint32_t id() const noexcept { return plan_.id; }

 private:
  void run() noexcept;
  std::optional<std::string> write();
  std::optional<std::string> end_by_rank_zero(state_dict::SnapshotWriter& writer);
  bool meet_at_begin();
  void meet();
  bool await(const std::string& key, std::chrono::milliseconds timeout);
  [[nodiscard]] std::string key(const char* name) const;

  Plan plan_;
  ProgressMeter meter_;
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;                  ///< guarded by mutex_
  std::optional<std::string> failure_;  ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace acc::detail
