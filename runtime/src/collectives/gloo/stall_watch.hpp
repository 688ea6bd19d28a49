// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/first_failure.hpp"
#include "collectives/group_spec.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
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

/// Observes the waits of one Gloo group on a separate thread. A rank that has waited for 250 ms
/// publishes its last calls in the store, reads those of the other ranks, and repeats that until
/// the wait ends. The watch cancels the wait if ranks made different calls under one number, or if
/// a rank has published an abort. Short waits cost nothing.
class StallWatch {
 public:
  /// `store` is used by this object alone.
  StallWatch(const GroupSpec& spec, std::unique_ptr<rendezvous::Store> store);
  ~StallWatch();

  /// Records a collective of this rank; `call` describes it.
  void called(std::uint32_t sequence, std::string call);
  /// Begins the observation of a wait. If the wait cannot succeed, `cancel` is called on the
  /// watch's thread.
  void begin(std::function<void()> cancel);
  /// Within a wait: the group member whose message is awaited now.
  void awaits(int peer) noexcept { peer_ = peer; }
  /// Ends the observation of a wait that succeeded.
  void end();
  /// Reason to give up a wait.
  struct Verdict {
    std::string reason;
    std::optional<int> at_fault;   ///< global rank
    Errc code = Errc::collective;  ///< of the error
  };
  /// Ends the observation of a wait that failed. Returns the reason if the watch cancelled the
  /// wait. The wait board keeps this rank's entry: other ranks, whose timeouts expire a little
  /// later, still have to find it.
  std::optional<Verdict> give_up();

  /// Publishes in the store why this rank gives up. The first reason in the group is kept.
  void publish_abort(const Verdict& why) noexcept;
  /// Reads the store for an abort of any rank. Blocks on the store.
  std::optional<Verdict> abort_reason() noexcept;
  /// The abort reason known so far, without reading the store. From the first call on, the watch's
  /// thread reads the store, at first often, later once per second. Any thread.
  std::optional<std::string> failure() noexcept;

 private:
  using Calls = std::map<std::uint32_t, std::string>;  ///< text of each call, by collective number
  struct Wait {
    std::function<void()> cancel;
  };
  void run(const std::stop_token& stop);
  /// Publishes `mine`, reads the other ranks' calls and aborts, and compares.
  std::optional<Verdict> compare(const Calls& mine);
  std::optional<Verdict> difference(const std::map<int, Calls>& calls, const Calls& mine);
  std::optional<Verdict> read_abort();
  void await_wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop,
                  std::chrono::milliseconds& interval);
  [[nodiscard]] std::string call_key(int rank) const;

  GroupSpec spec_;
  std::mutex store_mutex_;  ///< guards store_
  std::unique_ptr<rendezvous::Store> store_;
  FirstFailure known_;
  std::atomic<int> peer_ = -1;
  std::mutex mutex_;  ///< guards calls_, wait_, generation_, verdict_, asked_, told_
  std::condition_variable_any changed_;
  Calls calls_;                     ///< the last kComparedCalls of this rank
  std::optional<Wait> wait_;        ///< the wait under observation
  std::uint64_t generation_ = 0;    ///< changes at every begin and end of a wait
  std::optional<Verdict> verdict_;  ///< why the watch cancelled the wait
  /// Comparisons that found a difference before all ranks had published their call. Used by the
  /// watch's thread only.
  int incomplete_looks_ = 0;
  bool told_ = false;   ///< the wait board has an entry for this wait
  bool asked_ = false;  ///< `failure` was called: read the store also between waits
  std::jthread thread_;
};

}  // namespace acc::collectives
