// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/tiles.cuh"

namespace acc::cuda {
namespace {

// Comparisons with NaN are false, so a NaN passes through, as on the CPU.
__device__ __forceinline__ float clamped(float value, float limit) {
  const float above = value < -limit ? -limit : value;
  return above > limit ? limit : above;
}

__global__ void __launch_bounds__(kThreads)
    scale_clamped_tiles(float* values, std::size_t numel, float scale, float limit, bool aligned) {
  for (std::size_t begin = blockIdx.x * kTile; begin < numel; begin += gridDim.x * kTile) {
    if (aligned && begin + kTile <= numel) {
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        Quad<float> quad = load_quad(values + begin + quad_offset(i));
        for (int j = 0; j < 4; ++j) {
          quad.values[j] = clamped(scale * quad.values[j], limit);
        }
        store_quad(values + begin + quad_offset(i), quad);
      }
    } else {
      const std::size_t end = begin + kTile < numel ? begin + kTile : numel;
      for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads) {
        values[i] = clamped(scale * values[i], limit);
      }
    }
  }
}

}  // namespace

cudaError_t scale_clamped(float* values, std::size_t numel, float scale, float limit,
                          const Launch& launch) {
  if (numel == 0) {
    return cudaSuccess;
  }
  const cudaLaunchConfig_t config =
      tile_grid((numel + kTile - 1) / kTile, launch.multiprocessors, launch.stream);
  return cudaLaunchKernelEx(&config, scale_clamped_tiles, values, numel, scale, limit,
                            quads_aligned(values));
}

}  // namespace acc::cuda
