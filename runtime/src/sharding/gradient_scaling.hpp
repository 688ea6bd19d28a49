#pragma once

#include "acc/runtime/types.hpp"

namespace acc::sharding {

/// How a sum over ranks and micro-steps becomes their mean: `before` multiplies what a rank hands
/// to a reduction, `after` the sum.
struct GradientScaling {
  float before = 1.0F;
  float after = 1.0F;
};

/// `reduced`: in which dtype gradients travel. In float16, whose largest number is small, part of
/// the division comes first, as FSDP does it: the smallest power of two f with f * f >= world_size,
/// as far as halves of world_size are whole.
GradientScaling scale_gradients(int world_size, int micro_steps, DType reduced);

}  // namespace acc::sharding
