// SPDX-License-Identifier: Apache-2.0
#include "flight/recorder.hpp"

#include "acc/base/file_lock.hpp"
#include "acc/base/log.hpp"
#include "acc/base/written_file.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>

namespace acc::flight {
namespace {

/// Current time in microseconds since 1970. The coarse clock has the resolution of the kernel's
/// tick (1 to 10 ms), which is enough here, and costs only a few nanoseconds.
std::int64_t now_us() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

/// Stores a field that tells a reader in another process that the fields written before are valid.
template <typename T>
void publish(T& place, T value) noexcept {
  std::atomic_ref<T>(place).store(value, std::memory_order_release);
}

/// Copies text with a final NUL. Of a text that is too long it keeps the end, which is where the
/// names of neighbouring units differ.
template <std::size_t N>
void write(std::array<char, N>& to, std::string_view text) noexcept {
  text.remove_prefix(text.size() - std::min(text.size(), N - 1));
  *std::ranges::copy(text, to.begin()).out = '\0';
}

void* anonymous_memory() {
  void* const memory =
      ::mmap(nullptr, file::kNbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

/// Maps the file. Its space is allocated first: if the disk filled up later, a store into the
/// mapping would end the program by SIGBUS.
void* Recorder::map(const std::string& path) {
  if (path.empty()) {
    return anonymous_memory();
  }
  UniqueFd opened;
  try {
    opened = open_private_file(path);
    if (!try_lock(opened, path)) {
      return anonymous_memory();  // an earlier runtime of this process is writing it
    }
  } catch (const Error& problem) {
    logger(Component::runtime).warn("{}: {}", kRecordVariable, problem.what());
    return anonymous_memory();
  }
  int error = ::ftruncate(opened.get(), 0) != 0 ? errno : 0;
  error = error != 0 ? error : ::posix_fallocate(opened.get(), 0, file::kNbytes);
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = ::mmap(nullptr, file::kNbytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened.get(), 0);
    error = memory == MAP_FAILED ? errno : 0;
    ::madvise(memory, file::kNbytes, MADV_DONTFORK);
  }
  if (error != 0) {
    logger(Component::runtime)
        .warn("{}: cannot write {}: {}", kRecordVariable, path, std::strerror(error));
    return anonymous_memory();
  }
  file_ = std::move(opened);
  return memory;
}

Recorder::Recorder(const std::string& path, int rank) : memory_(map(path)) {
  auto* const bytes = static_cast<std::byte*>(memory_);
  head_ = new (bytes) file::FileHead{};
  failure_ = reinterpret_cast<file::FileFailure*>(bytes + sizeof(file::FileHead));
  groups_ = reinterpret_cast<file::FileGroup*>(failure_ + 1);
  slots_ = reinterpret_cast<file::FileSlot*>(groups_ + file::kGroups);
  file_metrics_ = reinterpret_cast<file::FileMetrics*>(bytes + file::kMetricsOffset);
  head_->magic = file::kMagic;
  head_->rank = rank;
  publish(head_->version, file::kVersion);
  scopes_.reserve(8);
}

Recorder::~Recorder() {
  ::munmap(memory_, file::kNbytes);
}

int Recorder::add_group(std::string_view name, const std::vector<int>& ranks) {
  const std::uint32_t index = std::min<std::uint32_t>(head_->num_groups, file::kGroups - 1);
  file::FileGroup& group = groups_[index];
  write(group.name, name);
  set_ranks(static_cast<int>(index), ranks);
  publish(head_->num_groups, index + 1);
  return static_cast<int>(index);
}

void Recorder::set_ranks(int index, const std::vector<int>& ranks) noexcept {
  file::FileGroup& group = groups_[index];
  group.first = ranks.front();
  group.stride = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  group.count = static_cast<std::int32_t>(ranks.size());
}

void Recorder::restart(int rank) noexcept {
  head_->rank = rank;
  failure_->is_set = 0;
  head_->has_left = 0;
  for (std::uint32_t i = 0; i < head_->num_groups; ++i) {
    publish(groups_[i].called, std::uint32_t{0});
    publish(groups_[i].waiting, std::uint32_t{0});
  }
  scopes_.clear();
  show_place();
}

void Recorder::show_place() noexcept {
  const Scope now = scopes_.empty() ? Scope{"", nullptr} : scopes_.back();
  write(head_->place.phase, now.phase);
  write(head_->place.unit, now.unit != nullptr ? *now.unit : std::string_view());
}

void Recorder::enter(const char* phase, std::string_view unit) {
  auto name = names_.find(unit);
  if (name == names_.end()) {
    name = names_.emplace(unit).first;
  }
  scopes_.push_back({phase, &*name});
  show_place();
}

void Recorder::leave(const char* phase, std::string_view unit) {
  const auto same = [&](const Scope& scope) {
    return *scope.unit == unit && std::string_view(scope.phase) == phase;
  };
  const auto last = std::find_if(scopes_.rbegin(), scopes_.rend(), same);
  if (last != scopes_.rend()) {
    scopes_.erase(std::next(last).base());
    show_place();
  }
}

Recorder::Call Recorder::call(int group, const char* kind, std::size_t nbytes) {
  file::FileGroup& of = groups_[group];
  const Scope now = scopes_.empty() ? Scope{"", nullptr} : scopes_.back();
  const Call call{++number_, of.called + 1, group, now.phase, now.unit};
  file::FileSlot& slot = slots_[call.number % file::kSlots];
  // A reader ignores a slot whose number is 0. The fence orders that store before the stores to the
  // fields.
  publish(slot.number, std::uint64_t{0});
  std::atomic_thread_fence(std::memory_order_release);
  head_->has_left = 0;
  slot.sequence = call.sequence;
  slot.group = static_cast<std::uint8_t>(group);
  slot.state = static_cast<std::uint8_t>(State::called);
  slot.nbytes = nbytes;
  slot.called_us = now_us();
  slot.waiting_us = 0;
  slot.ended_us = 0;
  write(slot.kind, kind);
  write(slot.place.phase, now.phase);
  write(slot.place.unit, now.unit != nullptr ? *now.unit : std::string_view());
  publish(slot.number, call.number);
  publish(of.called, call.sequence);
  last_call_ = call;
  return call;
}

std::string Recorder::id_of(const Call& call) const {
  const file::FileGroup& group = groups_[call.group];
  return std::string(group.name.data()) + " " + std::to_string(group.first) + "-" +
         std::to_string(group.first + group.stride * (group.count - 1)) + "/" +
         std::to_string(group.stride) + " " + std::to_string(call.sequence);
}

/// The slot of a collective; null if a later one has reused it.
file::FileSlot* Recorder::slot_of(const Call& call) const noexcept {
  file::FileSlot& slot = slots_[call.number % file::kSlots];
  return slot.number == call.number ? &slot : nullptr;
}

void Recorder::waits(const Call& call) noexcept {
  publish(groups_[call.group].waiting, call.sequence);
  if (file::FileSlot* const slot = slot_of(call)) {
    slot->waiting_us = now_us();
    publish(slot->state, static_cast<std::uint8_t>(State::waiting));
  }
}

void Recorder::ended(const Call& call, State state) noexcept {
  // A collective may fail when it is issued, before `waits`; then it is the one that the rank is
  // in.
  publish(groups_[call.group].waiting, state == State::done ? std::uint32_t{0} : call.sequence);
  if (file::FileSlot* const slot = slot_of(call)) {
    slot->ended_us = now_us();
    publish(slot->state, static_cast<std::uint8_t>(state));
  }
}

void Recorder::leaves() noexcept {
  if (failure_->is_set == 0) {
    publish(head_->has_left, std::uint32_t{1});
  }
}

void Recorder::failed(const Call& call, const Error& error) noexcept {
  failed(error);
  ended(call, State::failed);
}

void Recorder::failed(const Error& error) noexcept {
  if (failure_->is_set == 0 && head_->has_left == 0) {
    const std::string_view reason = error.what();
    failure_->at_fault = error.rank().value_or(-1);
    failure_->timed_out = error.code() == Errc::timeout ? 1 : 0;
    std::memcpy(failure_->reason.data(), reason.data(),
                std::min(reason.size(), failure_->reason.size() - 1));
    publish(failure_->is_set, std::uint32_t{1});
  }
}

void Recorder::waited(std::string_view kind, std::chrono::nanoseconds time) noexcept {
  const bool reduces = kind == "reduce_scatter" || kind == "all_reduce";
  (kind == "all_gather" ? gather_time_ : reduces ? reduce_time_ : wait_time_) += time;
}

void Recorder::end_step(std::span<const std::pair<std::string_view, double>> values) {
  const auto now = std::chrono::steady_clock::now();
  const auto seconds = [](std::chrono::nanoseconds& time) {
    return std::chrono::duration<double>(std::exchange(time, {})).count();
  };
  TrainingMetrics& metrics = metrics_.values;
  metrics.step_s = std::chrono::duration<double>(now - std::exchange(step_began_, now)).count();
  metrics.gather_s = seconds(gather_time_);
  metrics.reduce_s = seconds(reduce_time_);
  metrics.wait_s = seconds(wait_time_);
  metrics.compute_s =
      std::max(0.0, *metrics.step_s - *metrics.gather_s - *metrics.reduce_s - *metrics.wait_s);
  set(values);
  if (std::ranges::any_of(values,
                          [](const auto& each) { return each.first.starts_with("memory."); })) {
    memory_at_ = now;
  }
  publish_metrics();
}

bool Recorder::report(std::span<const std::pair<std::string_view, double>> values) {
  const bool all_fit = set(values);
  publish_metrics();
  return all_fit;
}

bool Recorder::set(std::span<const std::pair<std::string_view, double>> values) {
  bool all_fit = true;
  for (const auto& [name, value] : values) {
    all_fit = set_metric(metrics_.values, name, value) && all_fit;
  }
  return all_fit;
}

bool Recorder::wants_memory() const noexcept {
  return std::chrono::steady_clock::now() - memory_at_ >= std::chrono::seconds(1);
}

/// Writes the values to the file. See file::FileMetrics for the order.
void Recorder::publish_metrics() noexcept {
  metrics_.reported_us = now_us();
  const std::uint64_t number = file_metrics_->started + 1;
  publish(file_metrics_->started, number);
  std::atomic_thread_fence(std::memory_order_release);
  to_file(metrics_, *file_metrics_);
  publish(file_metrics_->finished, number);
}

}  // namespace acc::flight
