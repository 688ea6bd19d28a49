// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/keyed_hash.hpp"
#include "collectives/wait_board.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// Everything that a back end needs to build one group.
struct GroupSpec {
  std::string name;        ///< unique among the groups of the job; prefix of the group's store keys
  std::vector<int> ranks;  ///< global ranks in group order; the first one is the group's leader
  int rank = 0;            ///< index of this process in `ranks`
  rendezvous::Store* store = nullptr;  ///< outlives the group; null only if the group has one rank
  /// Limit for one collective and for the creation of the group.
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  std::shared_ptr<WaitBoard> board = {};  ///< null: a timeout blames the rank that was waited for
  HashKey secret = {};                    ///< the job's secret; zero if the job has none
  /// Called now and then in waits, on any thread: throws Error(peer_lost) if the members of the job
  /// have changed, so that the wait is in vain. May be empty.
  std::function<void()> check = {};

  /// The reason if `check` throws. Any thread.
  [[nodiscard]] std::optional<std::string> members_changed() const;

  /// Message for a timeout of `what` while this rank waited for group member `peer`. Sets `late` to
  /// the global rank at fault: the rank at the end of the chain of waits that starts at `peer`.
  /// last, elsewhere: the end of the chain within the group, if it is known, and true if the chain
  /// may go on in another group.
  [[nodiscard]] std::string reason_of_timeout(int peer, const std::string& what, int& late,
                                              int last = -1, bool elsewhere = true) const;
};

}  // namespace acc::collectives
