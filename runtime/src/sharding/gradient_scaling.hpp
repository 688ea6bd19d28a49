#pragma once

#include "acc/runtime/types.hpp"

namespace acc::sharding {

/// Factors that turn a sum over ranks and micro-steps into the mean: `before` multiplies a rank's
/// gradient before the reduction, `after` multiplies the sum.
struct GradientScaling {
  float before = 1.0F;
  float after = 1.0F;
};

/// reduced: dtype in which gradients are sent. With float16, whose largest number is 65504, part of
/// the division comes before the sum, with FSDP's factor: starting at 1 it is doubled while it
/// divides world_size and its square is below world_size.
GradientScaling scale_gradients(int world_size, int micro_steps, DType reduced);

}  // namespace acc::sharding
