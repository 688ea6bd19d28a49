// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/policy.hpp"

/// How gradients are accumulated over the micro-steps of a step. V: view dtype, in which the
/// program writes; R: reduced dtype, in which gradients are sent.
///
/// 1. A sum is float32 and runs in the order of the micro-steps. The first addend overwrites.
/// 2. If V is float32, the program is the one that adds: the memory that it has written stays in
///    place between micro-steps, and Target::written tells it to add. Otherwise each micro-step is
///    added to a separate float32 sum when it ends.
/// 3. A whole gradient is summed over all micro-steps (rule 2) and reduced once per step. A sharded
///    gradient is reduced in every micro-step, as DeepSpeed does, and its shard is the sum: the
///    reduction adds to it. With an offloaded optimizer the sum over micro-steps is in host memory,
///    and GradientOffload adds to it.
/// 4. Under no_sync nothing is reduced. Sharded gradients are then summed whole (rule 2) until the
///    next micro-step outside no_sync, or the step, reduces the sum.
/// 5. The program writes directly into the memory that peers read if its content may be sent as it
///    is; otherwise into scratch memory.
namespace acc::sharding {

/// Rule 2.
inline bool program_adds(const PrecisionPolicy& precision) noexcept {
  return precision.viewed == DType::float32;
}

/// Rule 5 for a sharded gradient. sums: the memory is kept for further micro-steps (rule 4). A
/// whole gradient, which is always summed in float32, is written directly if `program_adds`.
inline bool writes_contribution(const PrecisionPolicy& precision, bool sums) noexcept {
  return precision.viewed == precision.reduced && (!sums || program_adds(precision));
}

}  // namespace acc::sharding
