#pragma once

#include "acc/base/error.hpp"
#include "sharding/groups.hpp"

#include <fmt/format.h>

namespace acc::detail {

/// Calls into the groups and the device. A failure there ends every group of this rank with its
/// reason, so that all peers, whichever group they wait in, name the first cause.
template <typename Call>
decltype(auto) guarded(const sharding::Groups& groups, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    if (error.code() == Errc::collective || error.code() == Errc::timeout ||
        error.code() == Errc::connection) {
      groups.abort(error.what());
    } else if (error.code() == Errc::out_of_memory || error.code() == Errc::device) {
      groups.abort(fmt::format("rank {}: {}", groups.world->rank(), error.what()));
    }
    throw;
  }
}

}  // namespace acc::detail
