#include "descriptors.hpp"

#include "acc/base/log.hpp"

#include <sys/resource.h>

namespace acc::rendezvous {
namespace {

// Listeners, the loop's own, standard streams.
constexpr std::size_t kOthers = 64;

}  // namespace

void make_room_for(std::size_t max_connections) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < max_connections + kOthers) {
    logger("rendezvous")
        ->warn(
            "max_connections is {}, but {} descriptors are all that this process may have: raise "
            "the limit (ulimit -Hn, LimitNOFILE=), or lower max_connections",
            max_connections, limit.rlim_cur);
  }
}

}  // namespace acc::rendezvous
