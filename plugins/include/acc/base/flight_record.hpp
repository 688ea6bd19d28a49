#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The flight record of a worker: its last collectives, in a small file that it maps and that stays
/// when it is killed. The runtime writes it (runtime/src/flight), the launcher reads it when the
/// job has failed; both know each other by this format alone.
namespace acc::flight {

/// Names the worker's file. Without it there is none.
inline constexpr const char* kRecordVariable = "ACC_FLIGHT_RECORD";

/// The file: a `FileHead`, a `FileFailure`, `kGroups` of `FileGroup`, `kSlots` of `FileSlot`, in the
/// byte order of the machine, on which alone it is read. What is not used is zero. Texts end with a
/// zero byte; of a unit's name that is too long the end is kept.
namespace file {

inline constexpr std::array<char, 8> kMagic = {'A', 'C', 'C', 'F', 'L', 'I', 'G', 'T'};
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::size_t kGroups = 16;
inline constexpr std::size_t kSlots = 64;
inline constexpr std::size_t kUnitBytes = 96;
inline constexpr std::size_t kWordBytes = 16;
inline constexpr std::size_t kReasonBytes = 1000;

/// Where the program is: "forward" of "transformer.h.3".
struct Place {
  std::array<char, kWordBytes> phase;
  std::array<char, kUnitBytes> unit;
};

struct alignas(64) FileHead {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::int32_t rank;
  std::uint32_t num_groups;
  std::uint32_t has_left;  ///< 1: the program let go of its model, and has called nothing since
  Place place;
};

/// The first collective of this rank that failed, unless the rank had left.
struct alignas(64) FileFailure {
  std::uint32_t is_set;  ///< 1: the other fields are valid
  std::int32_t at_fault;  ///< the rank that the error names; -1: none
  std::uint32_t timed_out;
  std::array<char, kReasonBytes> reason;
};

/// Ranks `first`, `first + stride`, …, `count` of them. Collectives of a group count from 1.
struct alignas(64) FileGroup {
  std::array<char, kWordBytes> name;
  std::int32_t first;
  std::int32_t stride;
  std::int32_t count;
  std::uint32_t called;   ///< how many this rank has called
  std::uint32_t waiting;  ///< the one that it waits in, or failed in; 0: none
};

/// Collective number n of all groups lies in slot n % kSlots. `number` is 0 while it is written.
struct alignas(64) FileSlot {
  std::uint64_t number;
  std::uint32_t sequence;  ///< in its group
  std::uint8_t group;
  std::uint8_t state;
  std::array<char, kWordBytes> kind;
  std::uint64_t nbytes;
  std::int64_t called_us;  ///< microseconds since 1970; 0: not yet
  std::int64_t waiting_us;
  std::int64_t ended_us;
  Place place;
};

inline constexpr std::size_t kNbytes =
    sizeof(FileHead) + sizeof(FileFailure) + kGroups * sizeof(FileGroup) + kSlots * sizeof(FileSlot);

}  // namespace file

enum class State : std::uint8_t { called, waiting, done, failed };

constexpr std::string_view to_string(State state) noexcept {
  constexpr std::array<std::string_view, 4> kNames = {"called", "waiting", "done", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

/// Where a rank was, or what a collective was for. Either may be empty.
struct Place {
  std::string phase;  ///< forward, backward, prefetch, step, …
  std::string unit;
  bool operator==(const Place&) const = default;
};

/// A group as one of its ranks saw it.
struct Group {
  std::string name;
  int first = 0;
  int stride = 1;
  int count = 1;
  std::uint32_t called = 0;
  std::uint32_t waiting = 0;

  [[nodiscard]] bool same_ranks(const Group& other) const {
    return name == other.name && first == other.first && stride == other.stride &&
           count == other.count;
  }
  bool operator==(const Group&) const = default;
};

struct Collective {
  std::size_t group = 0;  ///< index of its group
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

/// Why the first failed collective of a rank failed, as the rank itself understood it.
struct Failure {
  std::optional<int> at_fault;  ///< the rank that the error names
  bool timed_out = false;       ///< that rank did not come within the limit
  std::string reason;           ///< any bytes; at most `file::kReasonBytes` - 1
  bool operator==(const Failure&) const = default;
};

struct Record {
  int rank = 0;
  Place place;
  bool has_left = false;  ///< it let go of its model and has called no collective since
  std::optional<Failure> failure = {};
  std::vector<Group> groups;
  std::vector<Collective> last;  ///< oldest first
  bool operator==(const Record&) const = default;
};

/// What a worker wrote, whatever it wrote: nothing where it is no record, and only those of its
/// collectives that are whole. Texts are printable ASCII, except the reason of a failure.
std::optional<Record> decode(std::string_view bytes);

/// The same of a file. Never waits; nothing where it cannot be read.
std::optional<Record> read_record(const std::string& path);

}  // namespace acc::flight
