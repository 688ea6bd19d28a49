// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "acc/runtime/data_order.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace acc::data {

/// Where a rank records the samples that it uses, and in which attempt of the job. Attempt and
/// ranks change when the rank rejoins its job.
struct Recording {
  std::filesystem::path folder = {};  ///< empty: nothing is recorded
  std::string attempt = {};           ///< the same on all ranks, of no other attempt
  int rank = 0;
  int world_size = 1;
};

/// The position with which an attempt began, and the attempt whose checkpoint had it.
struct Origin {
  DataPosition at = {};
  std::string attempt = {};  ///< empty: none, or one that recorded nothing
};

/// The record of one rank, a file of lines for each attempt (docs/formats/data_record.md), for
/// `acclaunch data check`. A line is written by one call, so a process that is killed leaves whole
/// lines. A file that cannot be written to is a warning, and the record ends.
class Record {
 public:
  /// recording: looked at again by `begin`. per_block: of a mixture, samples of each source in a
  /// block; else empty. Throws Error(config) if the file exists: attempts of two jobs would be
  /// mixed up.
  Record(std::shared_ptr<const Recording> recording, const DataOptions& options,
         std::vector<std::int64_t> per_block);

  /// Names the attempt in checkpoints.
  [[nodiscard]] const std::string& attempt() const noexcept { return attempt_; }
  /// Begins an attempt: again if this process goes back to a checkpoint. Creates its file first.
  /// Throws Error(config) as the constructor, and if the file cannot be created.
  void begin(const Origin& origin);
  void add(const DataBatch& batch, std::span<const DataSample> used,
           std::span<const std::uint64_t> hashes);
  void add(const PackedBatch& batch, std::span<const DataPiece> used);
  /// Returns when all lines are on disk.
  void flush();

 private:
  void check_free() const;
  void write(const std::string& line);
  void stop(const char* call);

  std::shared_ptr<const Recording> recording_;
  DataOptions options_;
  std::vector<std::int64_t> per_block_;
  std::filesystem::path path_;
  UniqueFd file_;
  std::string attempt_;
  int begun_ = 0;  ///< number of attempts in this file
};

}  // namespace acc::data
