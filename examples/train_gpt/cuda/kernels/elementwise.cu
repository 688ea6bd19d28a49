// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/parts.cuh"
#include "cuda/kernels/vector8.cuh"

namespace train_gpt::cuda {
namespace {

constexpr int kThreads = 256;

// gelu(u) = 0.5 u (1 + tanh(a)) = u sigmoid(2a) with a = sqrt(2/pi) (u + 0.044715 u^3)
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

__device__ float gelu_gate(float u) {
  return 1.0f / (1.0f + expf(-kTwoRootTwoOverPi * (u + kCubic * u * u * u)));
}

struct Gelu {
  __device__ float operator()(float /*old*/, float u) const { return u * gelu_gate(u); }
};
struct GeluBackward {
  __device__ float operator()(float dh, float u) const {
    const float gate = gelu_gate(u);
    const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * u * u);
    return dh * gate * (1.0f + u * (1.0f - gate) * slope);
  }
};
struct Copy {
  __device__ float operator()(float /*old*/, float from) const { return from; }
};

/// to = f(to, from) for each element. `to` is read only if ReadsOld is true.
template <bool ReadsOld, class Function, class From, class To>
__global__ void apply_kernel(const From* from, To* to, std::int64_t count) {
  const std::int64_t at =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (at >= count) {
    return;
  }
  const Vector8 input = load8(from + at);
  Vector8 values{};
  if constexpr (ReadsOld) {
    values = load8(to + at);
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values[i] = Function()(values[i], input[i]);
  }
  store8(to + at, values);
}

template <bool ReadsOld, class Function, class From, class To>
void apply(cudaStream_t stream, const char* name, const From* from, To* to, std::int64_t count) {
  launch(stream, name,
         {.grid = dim3(blocks_for(count, kThreads * kVector)), .block = dim3(kThreads)},
         apply_kernel<ReadsOld, Function, From, To>, from, to, count);
}

template <class T>
__global__ void bias_kernel(const T* bias, T* x, std::int64_t count, std::int64_t channels) {
  const std::int64_t at =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (at >= count) {
    return;
  }
  Vector8 values = load8(x + at);
  const Vector8 addend = load8(bias + at % channels);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values[i] += addend[i];
  }
  store8(x + at, values);
}

constexpr int kParts = 256;  // number of parts of the rows; one block sums each part
constexpr int kWarps = 8;

// parts: (kParts, C). A warp processes 256 columns of every (kParts * kWarps)-th row.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    column_parts_kernel(const T* x, float* parts, std::int64_t rows, std::int64_t channels) {
  __shared__ float sums[kWarps][kVector][32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * 32 + lane) * kVector;
  Vector8 sum{};
  if (column < channels) {
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kWarps + warp; row < rows;
         row += kParts * kWarps) {
      const Vector8 values = load8(x + row * channels + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[i] += values[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    sums[warp][i][lane] = sum[i];
  }
  __syncthreads();
  if (warp != 0 || column >= channels) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    float total = 0.0f;
    for (int part = 0; part < kWarps; ++part) {
      total += sums[part][i][lane];
    }
    parts[static_cast<std::int64_t>(blockIdx.y) * channels + column + i] = total;
  }
}

}  // namespace

template <class T>
void gelu_forward(cudaStream_t stream, const T* u, T* h, std::int64_t count) {
  apply<false, Gelu>(stream, "gelu", u, h, count);
}

template <class T>
void gelu_backward(cudaStream_t stream, const T* u, T* dh_to_du, std::int64_t count) {
  apply<true, GeluBackward>(stream, "gelu's gradient", u, dh_to_du, count);
}

template <class T>
void widen(cudaStream_t stream, const T* from, float* to, std::int64_t count) {
  apply<false, Copy>(stream, "conversion to fp32", from, to, count);
}

template <class T>
void add_bias(cudaStream_t stream, const T* bias, T* x, std::int64_t rows, std::int64_t channels) {
  launch(stream, "bias",
         {.grid = dim3(blocks_for(rows * channels, kThreads * kVector)), .block = dim3(kThreads)},
         bias_kernel<T>, bias, x, rows * channels, channels);
}

std::int64_t column_sums_scratch(std::int64_t channels) {
  return kParts * channels;
}

template <class T>
void column_sums(cudaStream_t stream, const T* x, T* sums, float beta, float* scratch,
                 std::int64_t rows, std::int64_t channels) {
  const unsigned parts = blocks_for(rows, kWarps) < kParts ? blocks_for(rows, kWarps) : kParts;
  launch(stream, "column sums",
         {.grid = dim3(blocks_for(channels, 32 * kVector), parts), .block = dim3(32 * kWarps)},
         column_parts_kernel<T>, x, scratch, rows, channels);
  add_parts<T>(stream, "column sums", scratch, static_cast<int>(parts), sums, nullptr, beta,
               channels);
}

#define INSTANTIATE(T)                                                                  \
  template void gelu_forward<T>(cudaStream_t, const T*, T*, std::int64_t);              \
  template void gelu_backward<T>(cudaStream_t, const T*, T*, std::int64_t);             \
  template void add_bias<T>(cudaStream_t, const T*, T*, std::int64_t, std::int64_t);    \
  template void widen<T>(cudaStream_t, const T*, float*, std::int64_t);                 \
  template void column_sums<T>(cudaStream_t, const T*, T*, float, float*, std::int64_t, \
                               std::int64_t);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
