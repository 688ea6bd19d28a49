// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board.hpp"
#include "acc/rendezvous/server.hpp"
#include "journal/journal.hpp"
#include "rounds/jobs.hpp"
#include "server/recorded_changes.hpp"
#include "store/key_table.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous {

/// What a server keeps for its clients. Owns the keys, the jobs and the log in which their changes
/// are recorded, and tells the board what happens in jobs. The three share
/// ServerOptions::max_bytes. Knows no clients: messages to them are returned.
///
/// The time of the jobs goes on from the last event in the log: time during which no server ran
/// counts for no limit.
class DurableState {
 public:
  using Clock = std::chrono::steady_clock;

  /// `options` must outlive it. `release` is called inside of calls into the keys.
  DurableState(const ServerOptions& options, KeyTable::Release release);

  /// Restores the state from the log, which then takes all changes. `place` names it in errors.
  /// `on_written` is called on another thread: call `commit` then. `may_act`: see RecordedChanges.
  /// Throws Error, also LeadershipLost.
  void recover(std::unique_ptr<JournalStorage> storage, const std::string& place,
               std::function<void()> on_written, std::function<bool()> may_act = {});
  /// Writes the changes since the last call to the log, unless earlier ones are still being
  /// written; then those of several calls become one group. Returns true if changes have reached
  /// the log since the last call. Throws Error, also LeadershipLost.
  bool commit();
  /// Gives up the log, and forgets everything.
  void forget();
  /// Ends the log. Throws Error.
  void close();
  [[nodiscard]] bool has_log() const noexcept { return journal_.has_value(); }
  [[nodiscard]] const RecordedChanges& changes() const noexcept { return changes_; }

  [[nodiscard]] KeyTable& keys() noexcept { return keys_; }
  [[nodiscard]] const KeyTable& keys() const noexcept { return keys_; }
  [[nodiscard]] rounds::Jobs& jobs() noexcept { return jobs_; }
  [[nodiscard]] const rounds::Jobs& jobs() const noexcept { return jobs_; }
  /// The time of the jobs.
  [[nodiscard]] rounds::Time now() const { return Clock::now() + shift_; }
  /// Time at which Jobs::pass must be called, on this machine's clock; time_point::max(): never.
  [[nodiscard]] Clock::time_point next_deadline() const;
  /// Passes an agent's message to its job and to the board. Throws like Jobs::receive.
  void receive(rounds::AgentId agent, rounds::AgentMessage message, rounds::Outbox& out);

  /// Divides the memory anew after a change of the state or of the options.
  void share_memory();
  /// Memory of keys and jobs, in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return keys_.bytes() + jobs_.bytes(); }
  /// Memory of the board, in bytes.
  [[nodiscard]] std::size_t watched_bytes() const { return board_ ? board_->bytes() : 0; }

 private:
  void tell_board();
  void repeat(const Journal::Entry& entry);
  void save(const Journal::Receive& add) const;

  const ServerOptions& options_;
  KeyTable keys_;
  rounds::Jobs jobs_;
  std::shared_ptr<Board> board_;    // null: nobody can watch
  std::optional<Journal> journal_;  // none: the server does not recover
  RecordedChanges changes_;
  Clock::duration shift_{};  // time of the jobs less this machine's clock
  bool is_recovering_ = false;
};

}  // namespace acc::rendezvous
