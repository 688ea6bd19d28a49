#pragma once

#include "acc/base/error.hpp"
#include "sharding/groups.hpp"

#include <fmt/format.h>

namespace acc::detail {

/// Runs a call that uses process groups and the device. If it fails there, every group of this rank
/// is aborted with the reason, so that all peers, whichever group they wait in, report the first
/// cause. Errors of the program (invalid_argument, config) abort nothing: no collective has been
/// issued.
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
