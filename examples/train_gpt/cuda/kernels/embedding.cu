// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/vector8.cuh"

namespace train_gpt::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void embedding_forward_kernel(const std::int32_t* ids, const T* wte, const T* wpe, T* x,
                                         std::int64_t rows, std::int64_t time,
                                         std::int64_t channels) {
  const std::int64_t vectors = channels / kVector;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= rows * vectors) {
    return;
  }
  const std::int64_t row = index / vectors;
  const std::int64_t column = index % vectors * kVector;
  Vector8 sum = load8(wte + ids[row] * channels + column);
  const Vector8 position = load8(wpe + row % time * channels + column);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    sum[i] += position[i];
  }
  store8(x + row * channels + column, sum);
}

constexpr int kRowsAtATime = 8;  // warps per block; each sums a part of a group's rows

// One block per token and 256 channels. Each warp sums every eighth row of the group, then the
// first warp adds the sums of all warps.
template <class T>
__global__ void __launch_bounds__(32 * kRowsAtATime)
    token_gradient_kernel(TokenGroups groups, const T* dx, T* d_wte, std::int64_t channels) {
  __shared__ float partials[kRowsAtATime][kVector][32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * 32 + lane) * kVector;
  const std::int32_t end = groups.starts[blockIdx.x + 1];
  Vector8 sum{};
  if (column < channels) {
    for (std::int32_t at = groups.starts[blockIdx.x] + static_cast<std::int32_t>(warp); at < end;
         at += kRowsAtATime) {
      const Vector8 row = load8(dx + groups.rows[at] * channels + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[i] += row[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    partials[warp][i][lane] = sum[i];
  }
  __syncthreads();
  if (warp != 0 || column >= channels) {
    return;
  }
  T* gradient = d_wte + groups.tokens[blockIdx.x] * channels + column;
  Vector8 total = load8(gradient);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    float added = 0.0f;
    for (int part = 0; part < kRowsAtATime; ++part) {
      added += partials[part][i][lane];
    }
    total[i] += added;
  }
  store8(gradient, total);
}

template <class T>
__global__ void position_gradient_kernel(const T* dx, T* d_wpe, std::int64_t rows,
                                         std::int64_t time, std::int64_t channels) {
  const std::int64_t vectors = channels / kVector;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= time * vectors) {
    return;
  }
  const std::int64_t column = index % vectors * kVector;
  Vector8 sum{};
  for (std::int64_t row = index / vectors; row < rows; row += time) {
    const Vector8 gradient = load8(dx + row * channels + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] += gradient[i];
    }
  }
  T* gradient = d_wpe + index / vectors * channels + column;
  Vector8 total = load8(gradient);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    total[i] += sum[i];
  }
  store8(gradient, total);
}

}  // namespace

template <class T>
void embedding_forward(cudaStream_t stream, const std::int32_t* ids, const T* wte, const T* wpe,
                       T* x, std::int64_t rows, std::int64_t time, std::int64_t channels) {
  launch(stream, "embedding",
         {.grid = dim3(blocks_for(rows * channels / kVector, kThreads)), .block = dim3(kThreads)},
         embedding_forward_kernel<T>, ids, wte, wpe, x, rows, time, channels);
}

template <class T>
void embedding_backward(cudaStream_t stream, const TokenGroups& groups, const T* dx, T* d_wte,
                        T* d_wpe, std::int64_t rows, std::int64_t time, std::int64_t channels) {
  launch(stream, "gradient of the token table",
         {.grid = dim3(static_cast<unsigned>(groups.count), blocks_for(channels, 32 * kVector)),
          .block = dim3(32 * kRowsAtATime)},
         token_gradient_kernel<T>, groups, dx, d_wte, channels);
  launch(stream, "gradient of the position table",
         {.grid = dim3(blocks_for(time * channels / kVector, kThreads)), .block = dim3(kThreads)},
         position_gradient_kernel<T>, dx, d_wpe, rows, time, channels);
}

#define INSTANTIATE(T)                                                                          \
  template void embedding_forward<T>(cudaStream_t, const std::int32_t*, const T*, const T*, T*, \
                                     std::int64_t, std::int64_t, std::int64_t);                 \
  template void embedding_backward<T>(cudaStream_t, const TokenGroups&, const T*, T*, T*,       \
                                      std::int64_t, std::int64_t, std::int64_t);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
