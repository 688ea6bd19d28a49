// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// Records, for all groups of the job, which rank waits for which. When a wait times out, the peer
/// may itself be waiting for a third rank in another group; that rank is the one to blame. Each
/// rank publishes its long waits in the store under "waits/<rank>", and `late_rank` follows the
/// chain. A thread does the publishing. It starts at the rank's first long wait, so a job without
/// long waits pays nothing.
class WaitBoard {
 public:
  /// `store` outlives the board. The board clones it at first use, because a store connection is
  /// not for several threads.
  WaitBoard(int rank, int world_size, rendezvous::Store& store);
  ~WaitBoard();

  /// Publishes that this rank waits for the global rank `rank`; kNobody: that it waits no longer.
  /// Does not block; any thread.
  void waits_for(int rank) noexcept;
  static constexpr int kNobody = -1;

  /// Follows the published waits from the global rank `rank` and returns the last rank of the
  /// chain. Returns `rank` if it waits for no one, or if the store cannot be read. Also
  /// returns `rank` if the waits form a cycle. Blocks on the store.
  int late_rank(int rank) noexcept;

 private:
  void run(const std::stop_token& stop);
  rendezvous::Store& store();

  const int rank_;
  const int world_size_;
  rendezvous::Store& origin_;
  std::mutex store_mutex_;  ///< guards store_
  std::unique_ptr<rendezvous::Store> store_;
  std::mutex mutex_;  ///< guards waits_for_, said_
  std::condition_variable_any changed_;
  int waits_for_ = kNobody;
  int said_ = kNobody;   ///< last published value
  std::jthread thread_;  ///< started by the first long wait
};

/// Publishes one wait on the board if it takes long, and withdraws it at the end of the wait. If
/// the wait ends by an exception, the entry stays: other ranks, whose timeouts expire a little
/// later, still have to find it.
class LongWait {
 public:
  /// `board` may be null.
  explicit LongWait(WaitBoard* board) noexcept : board_(board) {}
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  /// Called after each sleep of the wait (about 50 ms) while the global rank `rank` is still
  /// awaited.
  void goes_on(int rank) noexcept;

 private:
  WaitBoard* board_;
  int sleeps_ = 0;
  bool told_ = false;
  int exceptions_ = std::uncaught_exceptions();  ///< more of them in the destructor: the wait threw
};

}  // namespace acc::collectives
