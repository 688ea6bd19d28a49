#pragma once

#include "acc/base/export.hpp"

#include <cstdint>
#include <functional>
#include <span>

namespace acc {

/// Fills elements [offset, offset + out.size()) of a parameter. `stream` differs per parameter and
/// seed. A pure function of its arguments, so that each rank makes just its own shard.
using Initializer =
    std::function<void(std::uint64_t stream, std::int64_t offset, std::span<float> out)>;

ACC_API Initializer zeros();
ACC_API Initializer ones();
ACC_API Initializer constant(float value);
/// Gaussian with mean 0; counter-based (each element depends on stream and index alone).
ACC_API Initializer normal(float stddev);
/// Uniform in [low, high).
ACC_API Initializer uniform(float low, float high);

}  // namespace acc
