#pragma once

#include "acc/base/unique_fd.hpp"
#include "collectives/group_spec.hpp"
#include "collectives/shm/control_block.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace acc::collectives {

/// A memory mapping that several processes of one host share. It has no name in any file system
/// (memfd), so nothing can be left behind.
class SharedMapping {
 public:
  SharedMapping() = default;
  /// Makes `nbytes` of zeroed shared memory. Throws Error(out_of_memory).
  static SharedMapping create(std::size_t nbytes);
  /// Maps what process `pid` holds as descriptor `fd`.
  static SharedMapping open(int pid, int fd, std::size_t nbytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close_descriptor() noexcept { fd_.reset(); }

 private:
  static SharedMapping map(UniqueFd fd, std::size_t nbytes);
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

/// The control block of a group of ranks on one host: counters to wait on, liveness of the peers,
/// abort. Waits sleep on a futex and wake at once when a peer moves, aborts or dies.
class ShmChannel {
 public:
  explicit ShmChannel(GroupSpec spec);
  ~ShmChannel();
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  [[nodiscard]] int rank() const noexcept { return spec_.rank; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(spec_.ranks.size()); }
  [[nodiscard]] int global_rank(int rank) const {
    return spec_.ranks[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const GroupSpec& spec() const noexcept { return spec_; }

  [[nodiscard]] RankControl& control(int rank) const noexcept { return ranks_[rank]; }
  [[nodiscard]] RankControl& own() const noexcept { return ranks_[spec_.rank]; }
  /// This rank's two staging chunks, or a peer's.
  [[nodiscard]] std::byte* staging(int rank, unsigned which) const noexcept;

  static bool reached(const RankControl::Counter& counter, std::uint32_t target) noexcept;
  /// Sets a counter of this rank and wakes who waits for it.
  static void advance(RankControl::Counter& counter, std::uint32_t value) noexcept;
  /// Returns when `counter` of `peer` has reached `target`. `what` is asked for only in an error.
  void wait(const RankControl::Counter& counter, std::uint32_t target, int peer,
            const std::function<std::string()>& what);

  /// Ends the group on all ranks. `at_fault`: the global rank that caused it.
  void abort(const std::string& reason, int at_fault) noexcept;
  /// The same by this rank's own fault.
  void abort(const std::string& reason) noexcept { abort(reason, global_rank(rank())); }
  /// Whether it was this rank that ended the group, or one of several.
  [[nodiscard]] bool aborted_here() const noexcept { return aborted_here_; }
  /// Throws the reason, if the group is aborted.
  void throw_if_aborted() const;
  /// Aborts the group with `reason` and throws it, naming the global rank `at_fault`, if known.
  [[noreturn]] void fail(const std::string& reason, std::optional<int> at_fault);
  /// Why the group cannot go on: aborted, or a peer ended or left. Does not block; any thread.
  [[nodiscard]] std::optional<std::string> failure() const;

 private:
  [[nodiscard]] std::string abort_text() const;
  /// "ended" or "left the group", if `peer` did.
  [[nodiscard]] const char* end_of(int peer) const;
  void check_peer(int peer, const RankControl::Counter& counter, std::uint32_t target,
                  const std::function<std::string()>& what);

  GroupSpec spec_;
  SharedMapping mapping_;
  ControlHead* head_ = nullptr;
  RankControl* ranks_ = nullptr;
  std::byte* staging_ = nullptr;
  mutable std::mutex pidfds_mutex_;  ///< guards pidfds_
  mutable std::vector<UniqueFd> pidfds_;
  int spins_ = 0;
  std::atomic<bool> aborted_here_ = false;
};

}  // namespace acc::collectives
