#pragma once

#include "sharding/weight_storage.hpp"

#include <memory>

/// The implementations of WeightStorage behind `make_weight_storage`, one per file.
namespace acc::sharding {

std::unique_ptr<WeightStorage> make_replicated(Engine& engine, const FlatLayout& layout);
std::unique_ptr<WeightStorage> make_resident(Engine& engine, const FlatLayout& layout,
                                             bool persistent);
std::unique_ptr<WeightStorage> make_transient(Engine& engine, const FlatLayout& layout);

}  // namespace acc::sharding
