// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/tiles.cuh"

namespace acc::cuda {
namespace {

// Returns the sum of `value` over the threads of the block, added in a fixed order. Valid on thread
// 0.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
  }
  return sums[0];
}

__device__ __forceinline__ void add_square(double& sum, float value) {
  sum += static_cast<double>(value) * static_cast<double>(value);
}

// First pass: one partial sum per block. The thread that adds an element, and the order in which it
// does, depend only on the element's index and numel, not on alignment. So the result is
// reproducible.
__global__ void __launch_bounds__(kThreads)
    sum_squares(const float* __restrict__ values, std::size_t numel, double* partials,
                bool aligned) {
  double sum = 0.0;
  for (std::size_t begin = blockIdx.x * kTile; begin < numel; begin += gridDim.x * kTile) {
    if (aligned && begin + kTile <= numel) {
      Quad<float> loaded[kQuadsOfTile];
#pragma unroll
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        loaded[i] = load_quad(values + begin + quad_offset(i));
      }
#pragma unroll
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        for (int j = 0; j < 4; ++j) {
          add_square(sum, loaded[i].values[j]);
        }
      }
    } else {
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        const std::size_t first = begin + quad_offset(i);
        for (std::size_t at = first; at < first + 4 && at < numel; ++at) {
          add_square(sum, values[at]);
        }
      }
    }
  }
  const double total = block_sum(sum);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = total;
  }
}

// Second pass, one block: adds the partial sums to `*sum`.
__global__ void __launch_bounds__(kThreads)
    add_partials(const double* partials, unsigned count, double* sum) {
  double own = 0.0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    own += partials[i];
  }
  const double total = block_sum(own);
  if (threadIdx.x == 0) {
    *sum += total;
  }
}

// One thread.
__global__ void compute_clip(const double* squares, int ranks, double max_norm,
                             kernels::ClipFigures* figures) {
  const double norm = sqrt(squares[0] + squares[1] / ranks);
  const double coefficient = max_norm > 0.0 ? max_norm / (norm + 1e-6) : 1.0;
  figures->norm = norm;
  figures->coefficient = coefficient > 1.0 ? 1.0 : coefficient;
  figures->factor = static_cast<float>(figures->coefficient);
}

}  // namespace

cudaError_t clip_to_norm(const double* squares, int ranks, double max_norm,
                         kernels::ClipFigures* figures, const Launch& launch) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = launch.stream;
  return cudaLaunchKernelEx(&config, compute_clip, squares, ranks, max_norm, figures);
}

cudaError_t add_squared_norm(const float* values, std::size_t numel, double* sum, double* partials,
                             const Launch& launch) {
  if (numel == 0) {
    return cudaSuccess;
  }
  cudaLaunchConfig_t config{};
  // The grid depends on numel only, not on the GPU, so every GPU adds in the same order.
  const auto blocks = static_cast<unsigned>(std::min((numel + kTile - 1) / kTile, kNormPartials));
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = launch.stream;
  const cudaError_t status =
      cudaLaunchKernelEx(&config, sum_squares, values, numel, partials, quads_aligned(values));
  if (status != cudaSuccess) {
    return status;
  }
  config.gridDim = dim3(1);
  return cudaLaunchKernelEx(&config, add_partials, static_cast<const double*>(partials), blocks,
                            sum);
}

}  // namespace acc::cuda
