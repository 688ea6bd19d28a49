// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/own_process.hpp"
#include "acc/base/unique_fd.hpp"
#include "collectives/group_spec.hpp"
#include "collectives/shm/control_block.hpp"
#include "collectives/shm/descriptor_links.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace acc::collectives {

/// Owns a memory mapping that several processes of one host share. The memory is a memfd, which has
/// no name in any file system: it is freed with its last mapping or descriptor, also after a crash.
class SharedMapping {
 public:
  SharedMapping() = default;
  /// Creates `nbytes` of zero-filled shared memory and seals its size. Throws Error(out_of_memory).
  static SharedMapping create(std::size_t nbytes);
  /// Maps memory that another process created in this way. Throws Error(protocol) if `fd` is not a
  /// memfd of `nbytes` with a sealed size: if the file shrank later, an access would end this
  /// process by SIGBUS. Throws Error(out_of_memory).
  static SharedMapping open(UniqueFd fd, std::size_t nbytes);
  /// Moves the mapping to the address of `other`, whose memory it replaces. Both have the same
  /// size. Throws Error(out_of_memory).
  void replace(SharedMapping&& other);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// Closes the descriptor, which is not needed once all ranks have the memory. The mapping stays.
  void close_descriptor() noexcept { fd_.reset(); }

 private:
  static SharedMapping map(UniqueFd fd, std::size_t nbytes);
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

/// The control block of a group of ranks on one host (layout and memory ordering:
/// control_block.hpp). Provides waiting on counters, shared memory for buffers, liveness of the
/// peers, and abort.
///
/// A wait spins briefly, then sleeps on the futex of one peer's counter. It wakes at once when the
/// peer advances the counter or leaves, or when a rank aborts. The death of a process wakes no one:
/// it is found by the peer's pidfd, which is polled every 50 ms.
///
/// One thread uses a channel, except for `failure` and `abort`, which any thread may call.
class ShmChannel {
 public:
  /// Connects the ranks and maps the control block. Collective over the ranks of `spec`.
  explicit ShmChannel(GroupSpec spec);
  /// Marks this rank as departed and wakes the peers that wait for it. Not collective.
  ~ShmChannel();
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  [[nodiscard]] int rank() const noexcept { return spec_.rank; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(spec_.ranks.size()); }
  [[nodiscard]] int global_rank(int rank) const {
    return spec_.ranks[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const GroupSpec& spec() const noexcept { return spec_; }
  /// Sets the limit of later waits.
  void set_timeout(std::chrono::milliseconds timeout) noexcept { spec_.timeout = timeout; }

  /// On rank 0: creates memory that all ranks share and sends its descriptor to the others. Does
  /// not wait for them.
  SharedMapping make_shared(std::size_t nbytes) const;
  /// On other ranks: waits for the memory that rank 0 sends and maps it. Throws Error(protocol) if
  /// it is not sealed memory of `nbytes`.
  SharedMapping take_shared(std::size_t nbytes) const;

  [[nodiscard]] RankControl& control(int rank) const noexcept { return ranks_[rank]; }
  [[nodiscard]] RankControl& own() const noexcept { return ranks_[spec_.rank]; }
  /// One of the two staging chunks (`which` is 0 or 1) of a rank; kStagingChunk bytes.
  [[nodiscard]] std::byte* staging(int rank, unsigned which) const noexcept;

  /// True if `counter` has reached `target`. Acquire order: what the rank wrote before is visible
  /// then.
  static bool reached(const RankControl::Counter& counter, std::uint32_t target) noexcept;
  /// True if all ranks have reached `target`.
  [[nodiscard]] bool all_reached(RankControl::Counter RankControl::*counter,
                                 std::uint32_t target) const noexcept;
  /// Sets a counter of this rank, after everything that it announces is written, and wakes the
  /// waiters.
  static void advance(RankControl::Counter& counter, std::uint32_t value) noexcept;
  /// Returns when `counter` of group rank `peer` has reached `target`. Throws Error(peer_lost) if
  /// the peer has ended or left, what `throw_if_aborted` throws if the group is aborted, and
  /// Error(timeout) after the group's timeout; all of them abort the group. `what` describes the
  /// awaited event and is called only for the error.
  void wait(const RankControl::Counter& counter, std::uint32_t target, int peer,
            const std::function<std::string()>& what);

  /// Ends the group on all ranks. The first reason is kept. `at_fault`: the global rank that caused
  /// it; -1: unknown. code: collective or peer_lost.
  void abort(const std::string& reason, int at_fault, Errc code = Errc::collective) noexcept;
  /// The same, with this rank at fault.
  void abort(const std::string& reason, Errc code = Errc::collective) noexcept {
    abort(reason, global_rank(rank()), code);
  }
  /// True if this rank called `abort`, even if another rank's reason came first.
  [[nodiscard]] bool aborted_here() const noexcept { return aborted_here_; }
  /// Throws Error(collective | peer_lost) with the reason if the group is aborted.
  void throw_if_aborted() const;
  /// Aborts the group with `reason` and throws it, naming the global rank `at_fault`, if known.
  [[noreturn]] void fail(const std::string& reason, std::optional<int> at_fault,
                         Errc code = Errc::collective);
  /// The same for ranks that called different collectives as `number` of `group`. Waits at most
  /// `limit` for the ranks that have not reached `target`: only then is it known which calls are in
  /// the minority and therefore at fault. text_of: describes the call of a rank that has.
  [[noreturn]] void fail_different(std::uint32_t number, const std::string& group,
                                   RankControl::Counter RankControl::*counter, std::uint32_t target,
                                   std::chrono::milliseconds limit,
                                   const std::function<std::string(int)>& text_of);
  /// The reason why the group is unusable: it is aborted, or a peer has ended or left. Does not
  /// block; any thread.
  [[nodiscard]] std::optional<std::string> failure() const;
  /// The rank to blame if this rank waits too long for `peer`, both group ranks: the last one of
  /// the chain of waits that begins there.
  struct Late {
    int rank;
    bool elsewhere;  ///< it waits for nobody in this group
  };
  [[nodiscard]] Late late_rank(int peer) const;
  /// The peer for which `rank` waits; -1: for none.
  [[nodiscard]] int awaited_by(int rank) const;
  /// Text and rank at fault for a timeout of `what`, which `peer` did not reach.
  [[nodiscard]] std::string reason_of_timeout(int peer, const std::string& what, int& late) const;
  /// "ended" or "left the group" if `peer` did that, else null. Any thread.
  [[nodiscard]] const char* end_of(int peer) const;

 private:
  SharedMapping make_control_block(std::size_t nbytes) const;
  void give(const SharedMapping& mapping) const;
  void close_in_child() noexcept;
  [[nodiscard]] std::string abort_text() const;
  /// Fails the group if GroupSpec::check throws.
  void check_membership();
  /// Throws if `peer` can no longer advance `counter` to `target`.
  void check_peer(int peer, const RankControl::Counter& counter, std::uint32_t target,
                  const std::function<std::string()>& what);

  GroupSpec spec_;
  std::optional<DescriptorLinks> links_;  ///< empty if the group has one rank
  SharedMapping mapping_;
  ControlHead* head_ = nullptr;
  RankControl* ranks_ = nullptr;
  std::byte* staging_ = nullptr;
  std::vector<pid_t> pids_;       ///< by group rank, as the kernel told rank 0
  std::vector<UniqueFd> pidfds_;  ///< by group rank; empty for this rank, and without pidfd_open(2)
  int spins_ = 0;                 ///< times that `wait` tests a counter before it sleeps
  std::atomic<bool> aborted_here_ = false;
  ForkHook closes_in_child_{[this] { close_in_child(); }};
};

}  // namespace acc::collectives
