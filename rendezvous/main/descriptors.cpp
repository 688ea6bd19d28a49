// SPDX-License-Identifier: Apache-2.0
#include "descriptors.hpp"

#include "acc/base/log.hpp"

#include <sys/resource.h>

#include <algorithm>

namespace acc::rendezvous {
namespace {

// Descriptors reserved for listeners, the event loop and the standard streams.
constexpr std::size_t kOthers = 64;

std::size_t num_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::size_t max_fitting_connections() {
  return std::max(num_descriptors(), kOthers + 1) - kOthers;
}

void check_room_for(std::size_t max_connections) {
  if (max_connections > max_fitting_connections()) {
    logger(Component::rendezvous)
        .warn(
            "max_connections is {}, but this process may open at most {} file descriptors "
            "(RLIMIT_NOFILE): raise the limit (ulimit -Hn, LimitNOFILE=) or lower max_connections",
            max_connections, num_descriptors());
  }
}

}  // namespace acc::rendezvous
