// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace acc::rendezvous {

/// This process may not change the state any more, because another one does (JournalStorage).
struct LeadershipLost : Error {
  explicit LeadershipLost(const std::string& why) : Error(Errc::connection, why) {}
};

/// Keeps the groups of a Journal, in order, so that a crash at any moment leaves whole groups.
///
/// A Journal calls `read` first, then the others on one thread at a time. All errors name the
/// place. Errc::process: the storage is full or fails; nothing more is written then. Errc::config:
/// it is in use, damaged, or not accessible. Errc::not_supported: it has another version.
/// LeadershipLost: see there.
class JournalStorage {
 public:
  /// Receives a group; returns false if it is malformed.
  using Receive = std::function<bool(std::string_view group)>;

  virtual ~JournalStorage() = default;

  /// Passes on all groups. Removes what a crash has left behind them.
  virtual void read(const Receive& receive) = 0;
  /// Adds a group; returns when it is durable.
  virtual void append(std::string_view group) = 0;
  /// Replaces all groups by these; returns when they are durable. A crash leaves the old groups or
  /// the new ones.
  virtual void replace(std::span<const std::string> groups) = 0;
  /// True if `append` waits for a disk or a network: the Journal then calls it on another thread.
  [[nodiscard]] virtual bool waits() const noexcept = 0;
};

/// A write-ahead log of entries (docs/rendezvous.md, "The log"). For one thread.
///
/// Entries are collected by `add`, and `commit` hands them to the storage as one group: after a
/// crash the log holds all entries of a group or none. With a storage that waits, one group is
/// written at a time by another thread, while entries of the next one are collected; the caller
/// holds back what depends on an entry until `num_written` has reached its number.
class Journal {
 public:
  struct Entry {
    std::uint8_t kind = 0;  ///< chosen by the user
    std::string_view first{};
    std::string_view second{};
  };
  using Receive = std::function<void(const Entry&)>;

  /// Passes all entries of the storage to `replay`. `on_written` is called on another thread after
  /// each write of a storage that waits: call `commit` then.
  Journal(std::unique_ptr<JournalStorage> storage, const Receive& replay,
          std::function<void()> on_written = {});
  /// Writes the entries that were added, if no write has failed.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Returns the number of the entry; they are numbered from 1.
  std::uint64_t add(const Entry& entry);
  /// Writes the added entries, unless a write is in progress. Throws the error of an earlier write;
  /// after an error nothing is written any more.
  void commit();
  /// Number of the last entry that is durable.
  [[nodiscard]] std::uint64_t num_written() const noexcept { return num_written_; }
  /// True if `rewrite` should be called now, instead of `commit`: the log is much longer than after
  /// the last rewrite, and no write is in progress. Throws like `commit`.
  [[nodiscard]] bool is_long();
  /// Replaces the whole log by the entries that `state` passes on, like `commit`. The entries added
  /// since the last commit are dropped: they must be part of the state.
  void rewrite(const std::function<void(const Receive& add)>& state);

 private:
  /// A call of the storage.
  struct Write {
    std::vector<std::string> groups;
    bool replaces = false;
    std::uint64_t last = 0;  ///< number of its last entry
  };

  bool replay(std::string_view group, const Receive& replay);
  void start(Write write);
  void perform(const Write& write);
  void wait();
  void take_result();
  void work();

  std::unique_ptr<JournalStorage> storage_;
  std::function<void()> on_written_;
  std::string pending_;  // entries that were added and not handed to the storage
  std::uint64_t num_added_ = 0;
  std::uint64_t num_written_ = 0;
  std::uint64_t bytes_ = 0;            // size of all groups
  std::uint64_t rewritten_bytes_ = 0;  // the same, after the last rewrite
  bool is_broken_ = false;             // a write has failed
  bool is_writing_ = false;            // the other thread has a write, or its result is not taken

  // Shared with the other thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  Write write_;
  bool has_work_ = false;
  bool has_result_ = false;
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread writer_;
};

}  // namespace acc::rendezvous
