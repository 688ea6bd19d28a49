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

/// Who waits for whom, over all groups of the job, as far as waits take long: a rank that waits for
/// a peer which itself waits for another one must blame that one. A rank says so in the store by a
/// thread that is there from its first long wait on; before, it costs nothing.
class WaitBoard {
 public:
  /// `store` outlives it; only cloned, on the board's own thread.
  WaitBoard(int rank, int world_size, rendezvous::Store& store);
  ~WaitBoard();

  /// This rank has been waiting for `rank` for a while; kNobody: it goes on. Does not block.
  void waits_for(int rank) noexcept;
  static constexpr int kNobody = -1;

  /// The rank that `rank`, which somebody waits for, waits for in the end; itself where it waits
  /// for nobody, or all wait in a circle, or the store does not say.
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
  int said_ = kNobody;
  std::jthread thread_;
};

/// Tells the board of a wait that takes long. After a wait that failed the board keeps it: others,
/// whose time is up a little later, still have to ask.
class LongWait {
 public:
  /// `board` may be null.
  explicit LongWait(WaitBoard* board) noexcept : board_(board) {}
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  /// Another sleep is over, and `rank` is still waited for.
  void goes_on(int rank) noexcept;

 private:
  WaitBoard* board_;
  int sleeps_ = 0;
  bool told_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace acc::collectives
