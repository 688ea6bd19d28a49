// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

/// Sums and maxima over the threads of a warp or block, in a fixed order.
namespace train_gpt::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMostWarps = 32;

/// Returns the sum on every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

__device__ inline float warp_maximum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// Returns the maximum on every thread of the block; the rest as in block_sum.
__device__ inline float block_maximum(float value, float* partials) {
  value = warp_maximum(value);
  if (threadIdx.x % 32 == 0) {
    partials[threadIdx.x / 32] = value;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return warp_maximum(lane < blockDim.x / 32 ? partials[lane] : -INFINITY);
}

/// Returns the sum on every thread of the block, whose size must be a multiple of 32. partials:
/// kMostWarps floats of shared memory, which may be reused only after the block's next barrier.
__device__ inline float block_sum(float value, float* partials) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) {
    partials[threadIdx.x / 32] = value;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return warp_sum(lane < blockDim.x / 32 ? partials[lane] : 0.0f);
}

}  // namespace train_gpt::cuda
