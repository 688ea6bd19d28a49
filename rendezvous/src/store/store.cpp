// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"

namespace acc::rendezvous {

void Store::barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout) {
  const std::string last = std::string(key) + "/last_member";
  if (add(std::string(key) + "/num_members", 1) >= world_size) {
    set(last, "1");
  }
  wait({&last, 1}, timeout);
}

}  // namespace acc::rendezvous
