// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/snapshot.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace acc::state_dict {

/// Writes one rank's snapshot into a folder that all ranks fill. No function communicates, except
/// for the gathers of the FULL form.
class SnapshotWriter {
 public:
  /// `id` must be the same on all ranks, and different for every save. The references outlive this
  /// object.
  SnapshotWriter(const Snapshot& snapshot, const std::string& directory, std::uint32_t id,
                 Existing existing, ProgressMeter& meter);

  /// Makes the temporary folder "<directory>.acc-tmp.<id>". Before that rank 0 completes or removes
  /// leftovers of earlier saves and checks the target. Errors are kept in the attempt.
  void begin(Attempt& attempt);
  /// Writes and flushes this rank's files. If the target is a group of objects, `begin` has ended
  /// on rank 0. Errors are kept in the attempt. ends: the writing fails when it is true.
  void write(Attempt& attempt, const std::atomic<bool>* ends = nullptr);
  /// Called by rank 0 after all ranks have written: checks that every expected file is visible with
  /// its planned size, writes the manifest, and exchanges the folder with the target. Throws
  /// Error(config | disagreement).
  void commit();
  /// On rank 0, removes the temporary folder. Called after all ranks have stopped writing.
  void abandon() noexcept;

 private:
  [[nodiscard]] std::filesystem::path in_folder(const std::string& path) const {
    return folder_->temporary() / path;
  }
  void make_folder();
  void check_there() const;
  void write_folder(const PlannedFolder& planned, const std::atomic<bool>* ends);
  [[nodiscard]] Manifest::File found(const Snapshot::Expected& each) const;

  const Snapshot& snapshot_;
  const std::string& directory_;
  std::uint32_t id_;
  Existing existing_;
  ProgressMeter& meter_;
  std::optional<checkpoint::AtomicFolder> folder_;
  // Only rank 0's are used:
  std::vector<Snapshot::Expected> expected_;
  std::map<std::string, std::string> plans_;  ///< of the DCP folders
};

}  // namespace acc::state_dict
