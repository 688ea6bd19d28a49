// SPDX-License-Identifier: Apache-2.0
#include "journal/journal.hpp"

#include <algorithm>
#include <optional>
#include <utility>

// A group is a sequence of entries:
//   entry   u8 kind, then twice: length as a varint (7 bits a byte, lowest first), bytes
namespace acc::rendezvous {
namespace {

// The log is rewritten when it is twice as long as after the last time, but not below this size.
constexpr std::uint64_t kShortLog = std::uint64_t{16} << 20;
// A rewritten log has groups of about this size.
constexpr std::size_t kLargeGroup = std::size_t{1} << 20;
// With more bytes than this, `commit` waits for the write in progress: clients may send changes
// without waiting for replies.
constexpr std::size_t kMostPending = std::size_t{64} << 20;

void put_bytes(std::string& out, std::string_view bytes) {
  std::size_t size = bytes.size();
  for (; size >= 0x80; size >>= 7) {
    out.push_back(static_cast<char>(size | 0x80));
  }
  out.push_back(static_cast<char>(size));
  out.append(bytes);
}

void put_entry(std::string& out, const Journal::Entry& entry) {
  out.push_back(static_cast<char>(entry.kind));
  put_bytes(out, entry.first);
  put_bytes(out, entry.second);
}

/// Takes a length and so many bytes; nothing if `bytes` has fewer.
std::optional<std::string_view> take_bytes(std::string_view& bytes) {
  std::uint64_t size = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) {
      return std::nullopt;
    }
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    size |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) {
      break;
    }
  }
  if (size > bytes.size()) {
    return std::nullopt;
  }
  const std::string_view taken = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return taken;
}

}  // namespace

Journal::Journal(std::unique_ptr<JournalStorage> storage, const Receive& receive,
                 std::function<void()> on_written)
    : storage_(std::move(storage)), on_written_(std::move(on_written)) {
  storage_->read([&](std::string_view group) { return replay(group, receive); });
  rewritten_bytes_ = bytes_;
  if (storage_->waits()) {
    writer_ = std::thread([this] { work(); });
  }
}

Journal::~Journal() {
  try {
    wait();
    commit();
  } catch (const Error&) {
    is_broken_ = true;  // nobody waits for these entries any more
  }
  if (writer_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    writer_.join();
  }
}

/// Passes on the entries of a group; returns false if one is longer than the rest of the group.
bool Journal::replay(std::string_view group, const Receive& receive) {
  bytes_ += group.size();
  while (!group.empty()) {
    const auto kind = static_cast<std::uint8_t>(group.front());
    group.remove_prefix(1);
    const auto first = take_bytes(group);
    const auto second = first ? take_bytes(group) : std::nullopt;
    if (!second) {
      return false;
    }
    receive({kind, *first, *second});
  }
  return true;
}

std::uint64_t Journal::add(const Entry& entry) {
  put_entry(pending_, entry);
  return ++num_added_;
}

void Journal::commit() {
  if (pending_.size() > kMostPending) {
    wait();
  }
  take_result();
  if (!is_writing_ && !is_broken_ && !pending_.empty()) {
    start({.groups = {std::exchange(pending_, {})}, .last = num_added_});
  }
}

bool Journal::is_long() {
  take_result();
  return !is_writing_ && bytes_ + pending_.size() > std::max(kShortLog, 2 * rewritten_bytes_);
}

void Journal::rewrite(const std::function<void(const Receive& add)>& state) {
  take_result();
  if (is_broken_) {
    return;
  }
  Write write{.groups = {""}, .replaces = true, .last = num_added_};
  state([&](const Entry& entry) {
    if (write.groups.back().size() > kLargeGroup) {
      write.groups.emplace_back();
    }
    put_entry(write.groups.back(), entry);
  });
  pending_.clear();
  start(std::move(write));
}

void Journal::start(Write write) {
  std::uint64_t bytes = 0;
  for (const std::string& group : write.groups) {
    bytes += group.size();
  }
  bytes_ = write.replaces ? bytes : bytes_ + bytes;
  rewritten_bytes_ = write.replaces ? bytes : rewritten_bytes_;
  if (writer_.joinable()) {
    is_writing_ = true;
    {
      const std::lock_guard lock(mutex_);
      write_ = std::move(write);
      has_work_ = true;
    }
    changed_.notify_all();
    return;
  }
  is_broken_ = true;
  perform(write);
  is_broken_ = false;
  num_written_ = write.last;
}

void Journal::perform(const Write& write) {
  if (write.replaces) {
    storage_->replace(write.groups);
    return;
  }
  for (const std::string& group : write.groups) {
    storage_->append(group);
  }
}

/// Waits for the end of the write in progress.
void Journal::wait() {
  if (is_writing_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return has_result_; });
  }
}

/// Takes the result of the other thread, if there is one.
void Journal::take_result() {
  if (!is_writing_) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!has_result_) {
    return;
  }
  has_result_ = is_writing_ = false;
  if (error_) {
    is_broken_ = true;
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  num_written_ = write_.last;
}

/// The other thread.
void Journal::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return has_work_ || ends_; });
    if (!has_work_) {
      return;
    }
    has_work_ = false;
    lock.unlock();
    std::exception_ptr error;
    try {
      perform(write_);  // no other thread changes it before has_result_
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    has_result_ = true;
    changed_.notify_all();
    lock.unlock();
    if (on_written_) {
      on_written_();
    }
    lock.lock();
  }
}

}  // namespace acc::rendezvous
