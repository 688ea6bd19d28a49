#pragma once

#include "collectives/first_failure.hpp"
#include "collectives/group_spec.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// Looks after waits that take long. A rank that has waited for a while says in the store which
/// collectives it called last and reads what the others say: another call under the same number, or
/// an abort, ends the wait. Costs nothing while waits are short.
class StallWatch {
 public:
  StallWatch(const GroupSpec& spec, std::unique_ptr<rendezvous::Store> store);
  ~StallWatch();

  /// Notes a collective of this rank; `call` describes it.
  void called(std::uint32_t sequence, std::string call);
  /// Brackets one wait. `cancel` is called, on another thread, when the wait is hopeless.
  void begin(std::function<void()> cancel);
  /// Within it: what is waited for now comes from this member of the group.
  void awaits(int peer) noexcept { peer_ = peer; }
  void end();
  /// Ends a wait that failed, and returns why if the watch ended it. The board keeps whom this rank
  /// waited for: others, whose time is up a little later, still have to ask.
  struct Verdict {
    std::string reason;
    std::optional<int> at_fault;  ///< global rank
  };
  std::optional<Verdict> give_up();

  /// Tells the group why this rank gives up, and the global rank that is the cause; the first
  /// reason counts.
  void publish_abort(const std::string& reason, std::optional<int> at_fault) noexcept;
  /// The reason that any rank gave, if one did.
  std::optional<Verdict> abort_reason() noexcept;
  /// The same without a look into the store, which from the first call on the watch takes every
  /// second. Any thread.
  std::optional<std::string> failure() noexcept;

 private:
  using Calls = std::map<std::uint32_t, std::string>;  ///< by number
  struct Wait {
    std::function<void()> cancel;
  };
  void run(const std::stop_token& stop);
  std::optional<Verdict> compare(const Calls& mine);
  std::optional<Verdict> difference(const std::map<int, Calls>& calls, const Calls& mine);
  std::optional<Verdict> read_abort();
  void await_wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop);
  [[nodiscard]] std::string call_key(int rank) const;

  GroupSpec spec_;
  std::mutex store_mutex_;  ///< guards store_
  std::unique_ptr<rendezvous::Store> store_;
  FirstFailure known_;
  std::atomic<int> peer_ = -1;
  std::mutex mutex_;  ///< guards calls_, wait_, generation_, verdict_, asked_, told_
  std::condition_variable_any changed_;
  Calls calls_;  ///< the last ones
  std::optional<Wait> wait_;
  std::uint64_t generation_ = 0;
  std::optional<Verdict> verdict_;
  int incomplete_looks_ = 0;  ///< at a difference, while a rank had not yet said what it calls; the watch's thread
  bool told_ = false;   ///< the board, of this wait
  bool asked_ = false;  ///< somebody wants to know of aborts without waiting
  std::jthread thread_;
};

}  // namespace acc::collectives
