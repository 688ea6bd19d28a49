// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/vector8.cuh"

#include <cstdint>

/// Second step of sums over rows. In the first step each block writes the sums of its rows (a
/// part); this step adds the parts. The order of additions is fixed, so the result does not depend
/// on timing.
namespace train_gpt::cuda {

constexpr int kPartColumns = 32;  // columns per block
constexpr int kPartRows = 16;     // threads per column

/// first (channels) = beta * first + sums. If parts are twice as wide, the second half is added to
/// `second` (channels) in the same way.
template <class T>
__global__ void __launch_bounds__(kPartColumns* kPartRows)
    add_parts_kernel(const float* parts, int count, std::int64_t width, T* first, T* second,
                     float beta, std::int64_t channels) {
  __shared__ float sums[kPartRows][kPartColumns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kPartColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < width) {
    for (int part = static_cast<int>(threadIdx.y); part < count; part += kPartRows) {
      sum += parts[part * width + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) {
    return;
  }
  T* out = column < channels ? first + column : second + (column - channels);
  float total = 0.0f;
  for (int part = 0; part < kPartRows; ++part) {
    total += sums[part][threadIdx.x];
  }
  store(out, beta == 0.0f ? total : total + beta * to_float(*out));
}

/// Queues the kernel. parts: (count, width); width is channels or, with `second`, 2 * channels.
template <class T>
void add_parts(cudaStream_t stream, const char* name, const float* parts, int count, T* first,
               T* second, float beta, std::int64_t channels) {
  const std::int64_t width = second == nullptr ? channels : 2 * channels;
  launch(stream, name,
         {.grid = dim3(blocks_for(width, kPartColumns)), .block = dim3(kPartColumns, kPartRows)},
         add_parts_kernel<T>, parts, count, width, first, second, beta, channels);
}

}  // namespace train_gpt::cuda
