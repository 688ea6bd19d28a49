#pragma once

#include <chrono>
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
};

}  // namespace acc::collectives
