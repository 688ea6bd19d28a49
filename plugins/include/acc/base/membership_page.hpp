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
/// that the membership of the job has changed. Made for one round of the job. In a round the page
/// has an *epoch*: the number of times that ranks whose processes ended were given to others. Each
/// is announced when the others have been chosen. The workers tell in turn which epoch they have
/// joined. A round that cannot go on is over, with a reason. Any thread and process.
class ACC_API MembershipPage {
 public:
  /// Makes a page in epoch 0, without a name in any file system. replaces: the launcher gives the
  /// ranks of processes that end to others. Throws Error(out_of_memory).
  static MembershipPage create(bool replaces);
  /// Opens the page at `path`. Throws Error(config) if there is none.
  explicit MembershipPage(const std::string& path);
  MembershipPage(MembershipPage&& other) noexcept;
  MembershipPage& operator=(MembershipPage&&) = delete;
  ~MembershipPage();

  /// The file of a page that this process has made; closed when another program is executed.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool replaces() const noexcept;

  [[nodiscard]] std::uint32_t epoch() const noexcept;
  /// Begins the next epoch. Called by the launcher.
  void advance() noexcept;
  /// The round is over for this reason, of which the first 495 bytes are kept. The first call
  /// counts. Called by the launcher.
  void end_round(std::string_view reason) noexcept;
  /// The reason, without control characters, if the round is over.
  [[nodiscard]] std::optional<std::string> round_end() const;

  /// Throws Error(peer_lost) if the round is over or the epoch is not `epoch`.
  void check(std::uint32_t epoch) const;
  /// Waits until the epoch is not `seen` or the round is over. Returns false after `timeout`.
  [[nodiscard]] bool await_change(std::uint32_t seen, std::chrono::milliseconds timeout) const;

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
