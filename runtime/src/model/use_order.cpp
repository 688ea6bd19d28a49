// SPDX-License-Identifier: Apache-2.0
#include "model/use_order.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace acc::detail {

namespace {

/// A hash of 52 bits, which a double holds exactly (FNV-1a).
double hash_of(const std::vector<double>& values) {
  std::uint64_t hash = 14695981039346656037U;
  for (const double each : values) {
    hash = (hash ^ static_cast<std::uint64_t>(each)) * 1099511628211U;
  }
  return static_cast<double>(hash >> 12U);
}

const char* text_of(UseOrder::Step step) {
  switch (step) {
    case UseOrder::Step::begins_forward: return "begins the forward of";
    case UseOrder::Step::begins_backward: return "begins the backward of";
    case UseOrder::Step::ends_backward: break;
  }
  return "ends the backward of";
}

}  // namespace

void UseOrder::check(const sharding::Context& context,
                     const std::function<std::ptrdiff_t(const UnitState&)>& number_of) const {
  const auto& groups = context.groups;
  if (groups.world->size() == 1) {
    return;
  }
  std::vector<double> here;
  for (const auto& [step, unit] : uses_) {
    here.push_back(static_cast<double>(3 * number_of(*unit) + static_cast<int>(step) + 1));
  }
  const double hash = hash_of(here);
  std::array<double, 3> most = {hash, -hash, static_cast<double>(here.size())};
  groups.world->all_reduce(most, ReduceOp::max)->wait();
  if (most[0] == -most[1]) {
    return;
  }
  const auto longest = static_cast<std::size_t>(most[2]);
  here.resize(longest, 0.0);
  const std::vector<double> all = sharding::all_gather(groups, *context.device, here);
  std::size_t first = 0;
  const auto same = [&](std::size_t use) {
    for (std::size_t at = use; at < all.size(); at += longest) {
      if (all[at] != here[use]) {
        return false;
      }
    }
    return true;
  };
  while (first + 1 < longest && same(first)) {
    ++first;
  }
  const int rank = context.settings.identity.rank;
  throw Error(
      Errc::invalid_argument,
      fmt::format("the ranks used the units in different orders since the last step: as number {}, "
                  "rank {} {}, and other ranks do something else. All ranks must run the same "
                  "forwards and backwards",
                  first + 1, rank,
                  first < uses_.size() ? fmt::format("{} unit '{}'", text_of(uses_[first].first),
                                                     uses_[first].second->name)
                                       : "does nothing more"));
}

}  // namespace acc::detail
