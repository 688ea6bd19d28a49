// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_dict/model_files.hpp"
#include "state_dict/neighbour_copy.hpp"
#include "state_dict/snapshot_file.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace acc::state_dict {

/// The memory for snapshots of the ranks of one machine, which outlives them. A rank writes its own
/// file: its last two snapshots, and those that a rank of another machine sends. Used by the thread
/// that trains; another thread copies, and sends to the next machine.
class SnapshotMemory {
 public:
  /// paths: of the files of all ranks that this machine has had, by local rank ("/proc/PID/fd/N");
  /// own: number of this rank's file. Throws Error(config) with the path if that cannot be opened.
  SnapshotMemory(const std::vector<std::string>& paths, std::size_t own);
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  /// Sends each snapshot to the next machine too.
  void send_by(std::unique_ptr<NeighbourCopy> neighbour) { neighbour_ = std::move(neighbour); }

  /// For which attempt and run snapshots are made, and how often.
  struct Series {
    std::string run;  ///< name of the run, for which alone its snapshots count
    std::uint64_t history =
        0;  ///< of this attempt alone, the same on all ranks; later ones have larger ones
    std::int64_t every = 1;  ///< steps from one snapshot to the next
  };
  /// Begins to replace the older snapshot, and waits for the end of the snapshot before. Weights
  /// and moments are copied on another thread, or before they change. The snapshot is complete
  /// before the ranks meet in the step after which the next one is made, so that there is always
  /// one that all ranks have. A second call for a step does nothing. Not collective, but all ranks
  /// call it in the same steps. Throws Error(out_of_memory | config); the other snapshot stays
  /// whole then.
  void keep(std::span<const Part> parts, const SavedState& state, const Series& series);
  /// Waits for the snapshot that is being made; for a rank of another machine only while the job
  /// has not failed. Returns the step and the reason if it is not complete, once.
  std::optional<std::string> wait();

  [[nodiscard]] std::size_t files() const noexcept { return files_.size(); }
  /// Null if it cannot be opened.
  [[nodiscard]] const SnapshotFile* file(std::size_t number) const { return files_[number].get(); }
  /// Drops this rank's snapshots of a run after its step `step`, when none is being made. Not
  /// collective.
  void forget_after(std::int64_t step, const std::string& run);

 private:
  struct Begun;
  Begun begin(std::span<const Part> parts, const SavedState& state, const Series& series);
  void write_now(std::span<const Part> parts, Begun& begun);
  void complete(const Begun* begun) noexcept;
  void await_thread();

  std::vector<std::unique_ptr<SnapshotFile>> files_;
  SnapshotFile& own_;
  std::unique_ptr<NeighbourCopy> neighbour_;  ///< null: none
  std::optional<std::int64_t> kept_;          ///< step of the last snapshot of this process
  std::vector<device::MemoryPtr> staging_;    ///< page-locked, by model, if its updater is a GPU
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = true;                   ///< the thread's work; guarded by mutex_
  std::optional<std::string> failure_;  ///< of the thread; read when it has ended
};

}  // namespace acc::state_dict
