// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/flat_gradient.hpp"

#include <memory>

/// The implementations of FlatGradient behind `make_flat_gradient`, one per file. Their groups'
/// allocations are collective, so what is allocated may only depend on values that are equal on all
/// ranks.
namespace acc::sharding {

/// own_only: the mean over this rank's micro-steps, not over ranks (ignored parameters).
std::unique_ptr<FlatGradient> make_whole_gradient(const Context& context, Pools& pools,
                                                  Counters& counters, const FlatLayout& layout,
                                                  Shard owned, bool own_only);
std::unique_ptr<FlatGradient> make_sharded_gradient(const Context& context, Pools& pools,
                                                    Counters& counters, const FlatLayout& layout,
                                                    Shard owned);

}  // namespace acc::sharding
