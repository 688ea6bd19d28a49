// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"
#include "acc/base/unique_fd.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace acc {

/// A page of memory through which a launcher tells its workers, at once and without the network,
/// that the membership of the job has changed. Each round of the job is an *epoch* of the page,
/// with the number of the round. An epoch ends when ranks are lost, or when machines join; the next
/// one begins when the ranks have been given out anew. The workers tell in turn which epoch they
/// have joined. Workers that cannot go on are told the reason. Any thread and process.
class ACC_API MembershipPage {
 public:
  /// Where the ranks of an epoch meet.
  struct Meeting {
    std::string host{};  ///< of the store; empty: it is where it was
    std::uint16_t port = 0;
    std::string secret{};   ///< of the job's workers
    int restart_count = 0;  ///< part of the names of their keys
    /// Rank and number of machines, of which each has as many ranks as this one. 0 machines: both
    /// are as they were.
    int machine_rank = 0;
    int num_machines = 0;
  };

  /// The kinds of changes that the launcher makes while processes go on.
  enum class Changes : std::uint32_t {
    nothing,
    processes,  ///< it gives the ranks of processes that end to others
    machines,   ///< also the number of machines, and the ranks of those that go on
  };
  /// Makes a page in epoch 0, without a name in any file system. Throws Error(out_of_memory).
  static MembershipPage create(Changes changes);
  /// Opens the page at `path`, which may follow kRequired. Throws Error(config) if there is none.
  explicit MembershipPage(const std::string& path);
  /// Precedes the path of a page without which a worker must not join the others, which have their
  /// epochs from it.
  static constexpr std::string_view kRequired = "required:";
  MembershipPage(MembershipPage&& other) noexcept;
  MembershipPage& operator=(MembershipPage&&) = delete;
  ~MembershipPage();

  /// The file of a page that this process has made; closed when another program is executed.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] Changes changes() const noexcept;

  [[nodiscard]] std::uint32_t epoch() const noexcept;
  /// Where the ranks of this epoch meet; empty if it is not the epoch any more.
  [[nodiscard]] std::optional<Meeting> meeting(std::uint32_t epoch) const;
  /// True if this is the epoch in which the page was made: no process has taken the place of
  /// another since.
  [[nodiscard]] bool is_first(std::uint32_t epoch) const noexcept;
  /// True if ranks of this epoch are lost, or it is to be left between two steps.
  [[nodiscard]] bool has_ended(std::uint32_t epoch) const noexcept;
  /// True if ranks of this epoch, or of a later one, are lost.
  [[nodiscard]] bool has_lost(std::uint32_t epoch) const noexcept;
  /// Ends the epoch: ranks of it are lost. Called by the launcher.
  void end_epoch() noexcept;
  /// Ends the epoch, whose ranks are all there: they leave it between two steps. Called by the
  /// launcher.
  void end_epoch_between_steps() noexcept;
  /// Begins an epoch, after the end of the last one. Called by the launcher. Throws Error(config)
  /// for a host that is too long.
  void begin_epoch(std::uint32_t epoch, const Meeting& meeting);
  /// No epoch follows the current one, whose ranks go on: the launcher ends its workers. Called by
  /// the launcher.
  void begin_no_more() noexcept;
  [[nodiscard]] bool begins_no_more() const noexcept;
  /// The round is over for this reason, of which the first 487 bytes are kept. The first call
  /// counts. Called by the launcher.
  void end_round(std::string_view reason) noexcept;
  /// The reason, without control characters, if the round is over.
  [[nodiscard]] std::optional<std::string> round_end() const;

  /// Throws Error(peer_lost) if the round is over or ranks of `epoch`, or of a later one, are lost.
  void check(std::uint32_t epoch) const;
  /// Waits until an epoch other than `seen` has begun, or none will. Returns false after `timeout`.
  [[nodiscard]] bool await_change(std::uint32_t seen, std::chrono::milliseconds timeout) const;
  /// Waits until an epoch other than `seen` has begun. Throws Error(timeout) if none has in time,
  /// and Error(collective) with the reason if none will.
  void await_next(std::uint32_t seen, std::chrono::milliseconds timeout) const;

  /// Waits for the next change or `wake`, at most a second. May return early.
  void await_news() const noexcept;
  /// Ends the waits of all processes, which look again and wait on.
  void wake() noexcept;

  /// A worker has joined `epoch` with all its groups. slot: its local rank; those from kSlots on
  /// are not recorded.
  void joined(int slot, std::uint32_t epoch) noexcept;
  /// True if the worker has joined `epoch`; always true for slots that are not recorded.
  [[nodiscard]] bool has_joined(int slot, std::uint32_t epoch) const noexcept;
  static constexpr int kSlots = 896;

 private:
  struct Layout;
  explicit MembershipPage(UniqueFd fd);
  UniqueFd fd_;
  Layout* page_ = nullptr;
};

}  // namespace acc
