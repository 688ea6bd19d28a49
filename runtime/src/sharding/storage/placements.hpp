#pragma once

#include "sharding/weight_storage.hpp"

#include <memory>

/// The implementations of WeightStorage behind `make_weight_storage`, one per file.
namespace acc::sharding {

std::unique_ptr<WeightStorage> make_replicated(const Context& context, const FlatLayout& layout);
std::unique_ptr<WeightStorage> make_resident(const Context& context, GatherWindow& publications,
                                             const FlatLayout& layout, bool persistent);
std::unique_ptr<WeightStorage> make_transient(const Context& context, Pools& pools,
                                              const FlatLayout& layout);

}  // namespace acc::sharding
