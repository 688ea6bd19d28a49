// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/parts.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector8.cuh"

namespace train_gpt::cuda {
namespace {

constexpr int kMostThreads = kMaxChannels / kVector;

/// Returns the threads per block. A block processes one row at a time, eight channels per thread.
unsigned threads_for(std::int64_t channels) {
  return blocks_for(channels / kVector, 32) * 32;
}

template <class T>
__global__ void layernorm_forward_kernel(const T* x, const T* gamma, const T* beta, float eps, T* z,
                                         RowStats stats, std::int64_t channels) {
  __shared__ float partials[2][kMostWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVector;
  const bool inside = column < channels;
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  Vector8 values{};
  float sum = 0.0f;
  if (inside) {
    values = load8(x + row * channels + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum += values[i];
    }
  }
  const float mean = block_sum(sum, partials[0]) * inverse_channels;
  float squares = 0.0f;
  if (inside) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      squares += (values[i] - mean) * (values[i] - mean);
    }
  }
  const float rstd = rsqrtf(block_sum(squares, partials[1]) * inverse_channels + eps);
  if (threadIdx.x == 0) {
    stats.mean[row] = mean;
    stats.rstd[row] = rstd;
  }
  if (inside) {
    const Vector8 scale = load8(gamma + column);
    const Vector8 shift = load8(beta + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = (values[i] - mean) * rstd * scale[i] + shift[i];
    }
    store8(z + row * channels + column, values);
  }
}

/// Number of blocks among which the backward divides the rows. Each writes its part of dgamma and
/// dbeta.
constexpr int kParts = 1024;

// parts: (kParts, 2, C)
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    layernorm_backward_kernel(const T* x, const T* gamma, RowStats stats, const T* dz, T* dx,
                              bool accumulate, float* parts, std::int64_t rows,
                              std::int64_t channels) {
  __shared__ float partials[2][2]
                           [kMostWarps];  // alternates between rows: one barrier per row is enough
  const std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVector;
  const bool inside = column < channels;
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const unsigned warps = blockDim.x / 32;
  Vector8 dgamma{};
  Vector8 dbeta{};
  const Vector8 scale = inside ? load8(gamma + column) : Vector8{};
  unsigned turn = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += kParts, turn ^= 1u) {
    const std::int64_t at = row * channels + column;
    const float rstd = stats.rstd[row];
    const float mean = stats.mean[row];
    Vector8 xhat{};
    Vector8 d_xhat{};
    Vector8 d_row{};
    float sum = 0.0f;            // sum of d_xhat
    float sum_with_xhat = 0.0f;  // sum of d_xhat * xhat
    if (inside) {
      const Vector8 values = load8(x + at);
      const Vector8 d_values = load8(dz + at);
      if (accumulate) {
        d_row = load8(dx + at);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        xhat[i] = (values[i] - mean) * rstd;
        d_xhat[i] = d_values[i] * scale[i];
        dgamma[i] += d_values[i] * xhat[i];
        dbeta[i] += d_values[i];
        sum += d_xhat[i];
        sum_with_xhat += d_xhat[i] * xhat[i];
      }
    }
    sum = warp_sum(sum);
    sum_with_xhat = warp_sum(sum_with_xhat);
    if (lane == 0) {
      partials[turn][0][warp] = sum;
      partials[turn][1][warp] = sum_with_xhat;
    }
    __syncthreads();
    sum = warp_sum(lane < warps ? partials[turn][0][lane] : 0.0f) * inverse_channels;
    sum_with_xhat = warp_sum(lane < warps ? partials[turn][1][lane] : 0.0f) * inverse_channels;
    if (inside) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        d_row[i] += (d_xhat[i] - sum - xhat[i] * sum_with_xhat) * rstd;
      }
      store8(dx + at, d_row);
    }
  }
  if (inside) {
    float* part = parts + static_cast<std::int64_t>(blockIdx.x) * 2 * channels + column;
    store8(part, dgamma);
    store8(part + channels, dbeta);
  }
}

}  // namespace

template <class T>
void layernorm_forward(cudaStream_t stream, const T* x, const T* gamma, const T* beta, float eps,
                       T* z, RowStats stats, std::int64_t rows, std::int64_t channels) {
  launch(stream, "layer norm",
         {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(threads_for(channels))},
         layernorm_forward_kernel<T>, x, gamma, beta, eps, z, stats, channels);
}

std::int64_t layernorm_scratch(std::int64_t channels) {
  return kParts * 2 * channels;
}

template <class T>
void layernorm_backward(cudaStream_t stream, const T* x, const T* gamma, RowStats stats,
                        const T* dz, T* dx, bool accumulate, T* dgamma, T* dbeta, float* scratch,
                        std::int64_t rows, std::int64_t channels) {
  const auto parts = static_cast<int>(rows < kParts ? rows : kParts);
  launch(stream, "layer norm's gradient",
         {.grid = dim3(static_cast<unsigned>(parts)), .block = dim3(threads_for(channels))},
         layernorm_backward_kernel<T>, x, gamma, stats, dz, dx, accumulate, scratch, rows,
         channels);
  add_parts(stream, "layer norm's parameter gradients", scratch, parts, dgamma, dbeta, 1.0f,
            channels);
}

#define INSTANTIATE(T)                                                                          \
  template void layernorm_forward<T>(cudaStream_t, const T*, const T*, const T*, float, T*,     \
                                     RowStats, std::int64_t, std::int64_t);                     \
  template void layernorm_backward<T>(cudaStream_t, const T*, const T*, RowStats, const T*, T*, \
                                      bool, T*, T*, float*, std::int64_t, std::int64_t);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
