#pragma once

#include "collectives/keyed_hash.hpp"
#include "collectives/wait_board.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace acc::rendezvous {
class Store;
}

namespace acc::collectives {

/// Where and with whom a group is built. `ranks`: global ranks in group order, for messages;
/// `rank`: this process's place in it. `store` may be null when the group has one member.
struct GroupSpec {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;
  rendezvous::Store* store = nullptr;
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  std::shared_ptr<WaitBoard> board = {};  ///< null: nobody knows who waits for whom
  HashKey secret = {};                    ///< of the job; zero: it has none

  /// Why `what` timed out for who waited for the member `peer`; `late` becomes the rank at fault.
  [[nodiscard]] std::string reason_of_timeout(int peer, const std::string& what, int& late) const;
};

}  // namespace acc::collectives
