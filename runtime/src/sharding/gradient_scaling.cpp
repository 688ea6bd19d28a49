#include "sharding/gradient_scaling.hpp"

namespace acc::sharding {

// FSDP 1's pre-divide factor: DefaultState._get_gradient_predivide_factor in
// torch/distributed/algorithms/_comm_hooks/default_hooks.py. The exponents of bfloat16 and float32
// have the range to divide after the sum.
GradientScaling scale_gradients(int world_size, int micro_steps, DType reduced) {
  int before = 1;
  if (reduced == DType::float16) {
    while (world_size % before == 0 && before * before < world_size) {
      before *= 2;
    }
  }
  return {.before = 1.0F / static_cast<float>(before),
          .after = static_cast<float>(before) / static_cast<float>(world_size * micro_steps)};
}

}  // namespace acc::sharding
