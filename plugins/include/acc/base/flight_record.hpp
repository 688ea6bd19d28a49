// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/training_metrics.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The flight record of a worker: its last collectives and the values that it reports, in a small
/// file that the worker maps into memory. The kernel keeps the file's bytes when the worker is
/// killed. The runtime writes the record (runtime/src/flight); the launcher reads it while the job
/// is watched and after it has failed. This format is their only interface.
namespace acc::flight {

/// Environment variable that holds the path of the worker's file. If it is unset, no record is
/// written.
inline constexpr const char* kRecordVariable = "ACC_FLIGHT_RECORD";

/// Layout of the file: one `FileHead`, one `FileFailure`, `kGroups` times `FileGroup`, `kSlots`
/// times `FileSlot`, one `FileMetrics`. Integers are in the machine's byte order, because the file
/// is read only on the machine that wrote it. Unused bytes are zero. Texts end with a zero byte; a
/// unit's name that is too long loses its beginning, since the end tells layers apart.
namespace file {

/// First bytes of the file. A reader refuses another magic or version.
inline constexpr std::array<char, 8> kMagic = {'A', 'C', 'C', 'F', 'L', 'I', 'G', 'T'};
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::size_t kGroups = 16;
inline constexpr std::size_t kSlots = 64;
inline constexpr std::size_t kUnitBytes = 96;
inline constexpr std::size_t kWordBytes = 16;
inline constexpr std::size_t kReasonBytes = 1000;

/// Position of the program in the training step: phase "forward", unit "transformer.h.3".
struct Place {
  std::array<char, kWordBytes> phase;
  std::array<char, kUnitBytes> unit;
};

struct alignas(64) FileHead {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::int32_t rank;
  std::uint32_t num_groups;
  std::uint32_t has_left;  ///< 1: the program released its model and has called nothing since
  Place place;
};

/// The first failed collective of this rank. Not written after the program released its model.
struct alignas(64) FileFailure {
  std::uint32_t is_set;     ///< 1: the other fields are valid
  std::int32_t at_fault;    ///< the rank that the error names; -1: none
  std::uint32_t timed_out;  ///< 1: `at_fault` did not arrive within the collective timeout
  std::array<char, kReasonBytes> reason;
};

/// A process group of `count` ranks: `first`, `first + stride`, …. The collectives of a group are
/// numbered from 1.
struct alignas(64) FileGroup {
  std::array<char, kWordBytes> name;
  std::int32_t first;
  std::int32_t stride;
  std::int32_t count;
  std::uint32_t called;   ///< number of collectives that this rank has called
  std::uint32_t waiting;  ///< number of the collective it waits in or failed in; 0: none
};

/// One collective. The slots form a ring: collective number n, counted over all groups, is in slot
/// n % kSlots. The writer sets `number` to 0 while it fills the slot, so that a reader of a killed
/// worker's file can tell an incomplete slot.
struct alignas(64) FileSlot {
  std::uint64_t number;
  std::uint32_t sequence;  ///< number within its group, from 1
  std::uint8_t group;      ///< index into the FileGroups
  std::uint8_t state;      ///< a `State`
  std::array<char, kWordBytes> kind;
  std::uint64_t nbytes;
  std::int64_t called_us;  ///< microseconds since 1970; 0: has not happened yet
  std::int64_t waiting_us;
  std::int64_t ended_us;
  Place place;
};

/// TrainingMetrics of the rank. The writer increments `started`, writes, and increments `finished`.
/// A reader copies from the beginning to the end: if the two counts of its copy are equal, no write
/// was in progress, because it has read `finished` before and `started` after the values.
struct alignas(64) FileMetrics {
  static constexpr std::size_t kNameBytes = TrainingMetrics::kMaxNameBytes + 1;
  struct Bytes {
    std::array<char, kNameBytes> name;
    std::int64_t nbytes;
  };
  struct Value {
    std::array<char, kNameBytes> name;
    double value;
  };

  std::uint64_t finished;
  std::int64_t reported_us;  ///< microseconds since 1970; 0: nothing is reported
  std::int64_t step;         ///< -1: not reported
  std::uint32_t is_set;      ///< bit i: scalars[i] has been reported
  std::uint32_t num_memory;
  std::uint32_t num_values;
  std::array<double, 9> scalars;  ///< the optional doubles of TrainingMetrics, in their order
  std::array<Bytes, TrainingMetrics::kMaxEntries> memory;
  std::array<Value, TrainingMetrics::kMaxEntries> values;
  std::uint64_t started;
};

/// Size of every flight record in bytes.
inline constexpr std::size_t kMetricsOffset = sizeof(FileHead) + sizeof(FileFailure) +
                                              kGroups * sizeof(FileGroup) +
                                              kSlots * sizeof(FileSlot);
inline constexpr std::size_t kNbytes = kMetricsOffset + sizeof(FileMetrics);

}  // namespace file

/// State of a collective. `called`: issued, but no thread waits for its result yet.
enum class State : std::uint8_t { called, waiting, done, failed };

constexpr std::string_view to_string(State state) noexcept {
  constexpr std::array<std::string_view, 4> kNames = {"called", "waiting", "done", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

/// Position of a rank in the training step, or the position that a collective was called for.
/// Either field may be empty.
struct Place {
  std::string phase;  ///< forward, backward, prefetch, step, …
  std::string unit;
  bool operator==(const Place&) const = default;
};

/// A process group as one of its ranks recorded it. See `file::FileGroup` for the fields.
struct Group {
  std::string name;
  int first = 0;
  int stride = 1;
  int count = 1;
  std::uint32_t called = 0;
  std::uint32_t waiting = 0;

  bool operator==(const Group&) const = default;
};

/// One recorded collective of a rank.
struct Collective {
  std::size_t group = 0;  ///< index into `Record::groups`
  std::uint32_t number = 0;
  std::string kind;  ///< all_gather, reduce_scatter, …
  std::uint64_t nbytes = 0;
  State state = State::called;
  Place place;
  std::int64_t called_us = 0;  ///< microseconds since 1970
  std::int64_t waiting_us = 0;
  std::int64_t ended_us = 0;
  bool operator==(const Collective&) const = default;
};

/// The reason why the first failed collective of a rank failed, as that rank saw it.
struct Failure {
  std::optional<int> at_fault;  ///< the rank that the error names
  bool timed_out = false;       ///< that rank did not arrive within the collective timeout
  std::string reason;           ///< unchecked bytes, at most `file::kReasonBytes` - 1
  bool operator==(const Failure&) const = default;
};

/// Values that a rank has reported.
struct Metrics {
  std::int64_t reported_us = 0;  ///< microseconds since 1970
  TrainingMetrics values{};
  bool operator==(const Metrics&) const = default;
};

/// Copies values to the file's form and back. `from_file` returns nullopt if nothing is reported,
/// or if a write was in progress.
void to_file(const Metrics& metrics, file::FileMetrics& to);
std::optional<Metrics> from_file(const file::FileMetrics& from);

/// A decoded flight record.
struct Record {
  int rank = 0;
  Place place;
  bool has_left = false;  ///< the program released its model and has called nothing since
  std::optional<Failure> failure = {};
  std::vector<Group> groups;
  std::vector<Collective> last;  ///< oldest first
  std::optional<Metrics> metrics = {};
  bool operator==(const Record&) const = default;
};

/// Decodes untrusted bytes: a worker may have written anything, or died while it wrote. Returns
/// nullopt if the bytes are not a record of this version; leaves out collectives whose slot is
/// incomplete. All texts are printable ASCII, except the reason of a failure.
std::optional<Record> decode(std::string_view bytes);

/// Reads and decodes a file. Never blocks, even if the path names a FIFO. Returns nullopt if the
/// file cannot be read or is not a record.
std::optional<Record> read_record(const std::string& path);

}  // namespace acc::flight
