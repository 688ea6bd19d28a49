// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace acc::state_dict {

/// Memory for snapshots that outlives a rank: a file in memory that the launcher holds. It has four
/// places: two for the snapshots of a rank, and two for those of a rank of another machine. Each
/// pair is used in turn. A place has a head, meta data and values, a checksum over the last two,
/// and a mark that is written last: who is killed while he writes leaves a place that says it is
/// not whole.
class SnapshotFile {
 public:
  static constexpr int kOwn = 0;     ///< first place of the rank's own snapshots
  static constexpr int kGuests = 2;  ///< first place of those of a rank of another machine
  static constexpr int kPlaces = 4;

  struct Head {
    std::uint64_t magic = 0;
    std::uint64_t number = 0;  ///< of the snapshot in its pair, from 1
    std::uint64_t run = 0;     ///< hash of the run's name
    std::uint64_t model =
        0;  ///< hash of names, shapes and dtypes, which the strategy does not change
    std::uint64_t layout = 0;   ///< hash of everything that the rank holds
    std::uint64_t history = 0;  ///< of the attempt that made it
    std::int64_t step = 0;
    std::int32_t rank = 0;
    std::int32_t ranks = 1;
    std::int32_t shards = 1;   ///< rank r holds shard r % shards
    std::int32_t has_all = 1;  ///< 0: the values that replicas hold too are left out
    std::uint64_t meta_nbytes = 0;
    std::uint64_t values_nbytes = 0;
    std::uint32_t crc32 = 0;  ///< of meta data and values
    std::uint32_t complete = 0;
  };

  /// path: of the file, which is open in the launcher ("/proc/PID/fd/N"). Throws Error(config) with
  /// the path.
  explicit SnapshotFile(const std::string& path);
  /// A file of this process.
  SnapshotFile();

  /// Returns the head of a place; a default one if there is none.
  [[nodiscard]] Head head(int place) const;
  /// Says that the place is being written. Then come meta data and values, and `complete`.
  void begin(int place, Head head) const;
  /// Reads what was written, and says that it is whole.
  void complete(int place, Head head) const;
  /// The same for what another rank has made, with its checksum. Throws Error(config) if that of
  /// the bytes is another one.
  void accept(int place, Head head) const;
  /// Says that a place has nothing.
  void forget(int place) const;
  /// The place of a pair, named by its first, that is written next: one that is not whole, or the
  /// older.
  [[nodiscard]] int next(int pair) const;
  /// Number of the newest snapshot of a pair.
  [[nodiscard]] std::uint64_t newest(int pair) const;
  /// True if the place has a whole snapshot. Reads all its bytes.
  [[nodiscard]] bool is_whole(int place) const;

  /// Meta data and values follow each other: `at` counts from the first byte of meta data. Throw
  /// Error(config | out_of_memory).
  void read(int place, std::uint64_t at, std::span<std::byte> to) const;
  void write(int place, std::uint64_t at, std::span<const std::byte> from) const;
  [[nodiscard]] std::string meta(int place) const;

 private:
  [[nodiscard]] std::uint32_t sum(int place, const Head& head) const;
  void write_head(int place, const Head& head) const;

  std::string path_;
  UniqueFd file_;
};

}  // namespace acc::state_dict
