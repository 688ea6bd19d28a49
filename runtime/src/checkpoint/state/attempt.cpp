#include "checkpoint/state/attempt.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>

namespace acc::checkpoint {

void Attempt::settle(const sharding::Groups& groups, const std::string& what) const {
  auto& world = *groups.world;
  std::array<double, 1> failed = {failure_ ? static_cast<double>(world.size() - world.rank())
                                           : 0.0};
  // Released: nobody may end its groups over a failure before all have heard of it.
  world.all_reduce(failed, ReduceOp::max)->wait_released();
  if (failure_) {
    rethrow();
  }
  if (failed[0] != 0.0) {
    const int rank = world.size() - static_cast<int>(failed[0]);
    throw Error(Errc::config, fmt::format("rank {} failed in {}; see its message", rank, what),
                rank);
  }
}

void Attempt::rethrow() const {
  try {
    std::rethrow_exception(failure_);
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(Errc::config, error.what());
  }
}

}  // namespace acc::checkpoint
