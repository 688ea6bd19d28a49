// SPDX-License-Identifier: Apache-2.0
#include "acc/base/flight_record.hpp"

#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

namespace acc::flight {
namespace {

// Bounds of a plausible record. The worker may have overwritten the mapped file with anything, so
// every number is checked before it is used.
constexpr std::int32_t kMostRanks = 1 << 24;

/// Reads a zero-terminated text. Replaces bytes that a terminal could interpret.
template <std::size_t N>
std::string text(const std::array<char, N>& bytes) {
  std::string words(bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0'));
  std::ranges::replace_if(
      words, [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return words;
}

Place place(const file::Place& from) {
  return {text(from.phase), text(from.unit)};
}

/// Copies a struct out of the bytes, which may not be aligned for it.
template <typename T>
T part(std::string_view bytes, std::size_t offset) {
  T result;
  std::memcpy(&result, bytes.data() + offset, sizeof(T));
  return result;
}

std::optional<Failure> failure(const file::FileFailure& from) {
  if (from.is_set != 1) {
    return std::nullopt;
  }
  const bool names_rank = from.at_fault >= 0 && from.at_fault < kMostRanks;
  return Failure{.at_fault = names_rank ? std::optional(from.at_fault) : std::nullopt,
                 .timed_out = from.timed_out != 0,
                 .reason = {from.reason.begin(), std::ranges::find(from.reason, '\0')}};
}

bool is_plausible(const file::FileGroup& group) {
  return group.first >= 0 && group.first < kMostRanks && group.count >= 1 &&
         group.count < kMostRanks && group.stride >= 1 && group.stride < kMostRanks;
}

/// Returns nullopt for a slot that is empty, incomplete or implausible. index: position of the slot
/// in the ring; a complete slot holds a number that belongs there.
std::optional<Collective> collective(const file::FileSlot& slot, std::size_t index,
                                     std::size_t num_groups) {
  if (slot.number == 0 || slot.number % file::kSlots != index || slot.group >= num_groups ||
      slot.state > static_cast<std::uint8_t>(State::failed)) {
    return std::nullopt;
  }
  return Collective{.group = slot.group,
                    .number = slot.sequence,
                    .kind = text(slot.kind),
                    .nbytes = std::min<std::uint64_t>(slot.nbytes, INT64_MAX),
                    .state = static_cast<State>(slot.state),
                    .place = place(slot.place),
                    .called_us = std::max<std::int64_t>(slot.called_us, 0),
                    .waiting_us = std::max<std::int64_t>(slot.waiting_us, 0),
                    .ended_us = std::max<std::int64_t>(slot.ended_us, 0)};
}

/// Scalars of TrainingMetrics in the order of FileMetrics::scalars.
constexpr std::array kScalars = {&TrainingMetrics::loss,          &TrainingMetrics::learning_rate,
                                 &TrainingMetrics::gradient_norm, &TrainingMetrics::tokens_per_s,
                                 &TrainingMetrics::step_s,        &TrainingMetrics::compute_s,
                                 &TrainingMetrics::gather_s,      &TrainingMetrics::reduce_s,
                                 &TrainingMetrics::wait_s};
static_assert(kScalars.size() == std::tuple_size_v<decltype(file::FileMetrics::scalars)>);

template <std::size_t N>
void put_name(std::array<char, N>& to, std::string_view name) {
  *std::ranges::copy(name.substr(0, N - 1), to.begin()).out = '\0';
}

}  // namespace

void to_file(const Metrics& metrics, file::FileMetrics& to) {
  const TrainingMetrics& values = metrics.values;
  to.reported_us = metrics.reported_us;
  to.step = values.step.value_or(-1);
  to.is_set = 0;
  for (std::size_t i = 0; i < kScalars.size(); ++i) {
    const auto& scalar = values.*kScalars[i];
    to.is_set |= scalar ? 1U << i : 0U;
    to.scalars[i] = scalar.value_or(0.0);
  }
  to.num_memory = 0;
  for (const auto& [name, nbytes] : values.memory) {
    file::FileMetrics::Bytes& entry = to.memory.at(to.num_memory++);
    put_name(entry.name, name);
    entry.nbytes = nbytes;
  }
  to.num_values = 0;
  for (const auto& [name, value] : values.values) {
    file::FileMetrics::Value& entry = to.values.at(to.num_values++);
    put_name(entry.name, name);
    entry.value = value;
  }
}

std::optional<Metrics> from_file(const file::FileMetrics& from) {
  constexpr std::size_t kMost = TrainingMetrics::kMaxEntries;
  if (from.finished != from.started || from.reported_us <= 0 || from.num_memory > kMost ||
      from.num_values > kMost) {
    return std::nullopt;
  }
  Metrics metrics{.reported_us = from.reported_us};
  TrainingMetrics& values = metrics.values;
  if (from.step >= 0) {
    values.step = from.step;
  }
  for (std::size_t i = 0; i < kScalars.size(); ++i) {
    if ((from.is_set >> i & 1U) != 0) {
      values.*kScalars[i] = from.scalars[i];
    }
  }
  for (std::size_t i = 0; i < from.num_memory; ++i) {
    if (const std::string name = text(from.memory[i].name); is_metric_name(name)) {
      values.memory[name] = std::max<std::int64_t>(from.memory[i].nbytes, 0);
    }
  }
  for (std::size_t i = 0; i < from.num_values; ++i) {
    if (const std::string name = text(from.values[i].name); is_metric_name(name)) {
      values.values[name] = from.values[i].value;
    }
  }
  return metrics;
}

// Collects the valid slots and sorts them by number, because the ring may start at any slot.
std::optional<Record> decode(std::string_view bytes) {
  using namespace file;
  if (bytes.size() != kNbytes) {
    return std::nullopt;
  }
  const auto head = part<FileHead>(bytes, 0);
  if (head.magic != kMagic || head.version != kVersion || head.rank < 0 ||
      head.rank >= kMostRanks || head.num_groups > kGroups) {
    return std::nullopt;
  }
  Record record{.rank = head.rank,
                .place = place(head.place),
                .has_left = head.has_left == 1,
                .failure = failure(part<FileFailure>(bytes, sizeof(FileHead))),
                .groups = {},
                .last = {},
                .metrics = from_file(part<FileMetrics>(bytes, kMetricsOffset))};
  constexpr std::size_t kFirstGroup = sizeof(FileHead) + sizeof(FileFailure);
  for (std::size_t i = 0; i < head.num_groups; ++i) {
    const auto group = part<FileGroup>(bytes, kFirstGroup + i * sizeof(FileGroup));
    if (!is_plausible(group)) {
      return std::nullopt;
    }
    record.groups.push_back(
        {text(group.name), group.first, group.stride, group.count, group.called, group.waiting});
  }
  constexpr std::size_t kFirstSlot = kFirstGroup + kGroups * sizeof(FileGroup);
  std::vector<std::pair<std::uint64_t, Collective>> found;
  for (std::size_t i = 0; i < kSlots; ++i) {
    const auto slot = part<FileSlot>(bytes, kFirstSlot + i * sizeof(FileSlot));
    if (auto each = collective(slot, i, record.groups.size())) {
      found.emplace_back(slot.number, std::move(*each));
    }
  }
  std::ranges::sort(found, {}, [](const auto& each) { return each.first; });
  for (auto& [_, each] : found) {
    record.last.push_back(std::move(each));
  }
  return record;
}

std::optional<Record> read_record(const std::string& path) {
  // O_NONBLOCK and the check for a regular file: a worker could have replaced its file by a FIFO or
  // a device, on which open or read would block the launcher.
  const UniqueFd opened(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  // One byte more than a record, so that a file that is too long is noticed.
  std::string bytes(file::kNbytes + 1, '\0');
  std::size_t size = 0;
  ssize_t count = 0;
  do {
    count = ::read(opened.get(), bytes.data() + size, bytes.size() - size);
    size += count > 0 ? static_cast<std::size_t>(count) : 0;
  } while ((count > 0 && size < bytes.size()) || (count < 0 && errno == EINTR));
  bytes.resize(size);
  return decode(bytes);
}

}  // namespace acc::flight
