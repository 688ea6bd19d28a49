// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector8.cuh"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace train_gpt::cuda {
namespace {

constexpr unsigned kMostThreads = 1024;

constexpr float kLog2E = 1.44269504f;

/// exp(value - maximum), by the instruction for powers of two.
__device__ float exponential(float value, float maximum) {
  return exp2f((value - maximum) * kLog2E);
}

/// The maximum of some numbers and the sum of exp(number - maximum).
struct ExponentialSum {
  float maximum;
  float sum;

  __device__ void add(const ExponentialSum& other) {
    const float highest = fmaxf(maximum, other.maximum);
    if (highest == -INFINITY) {
      return;  // both sides are empty
    }
    sum = sum * exponential(maximum, highest) + other.sum * exponential(other.maximum, highest);
    maximum = highest;
  }
};

__device__ ExponentialSum warp_total(ExponentialSum value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value.add({__shfl_xor_sync(kAllLanes, value.maximum, step),
               __shfl_xor_sync(kAllLanes, value.sum, step)});
  }
  return value;
}

template <class T>
__device__ ExponentialSum thread_part(const T* logits, std::int64_t vocab) {
  ExponentialSum part{-INFINITY, 0.0f};
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVector; column < vocab;
       column += blockDim.x * kVector) {
    Vector8 values = load8(logits + column);
    float highest = part.maximum;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = column + i < vocab ? values[i] : -INFINITY;
      highest = fmaxf(highest, values[i]);
    }
    part.sum *= exponential(part.maximum, highest);  // the factor is 0 in the first iteration
    part.maximum = highest;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      part.sum += exponential(values[i], highest);
    }
  }
  return part;
}

/// Exponentials that are kept as T are multiplied by 2 to this power, so that small ones are no
/// subnormal numbers of fp16.
template <class T>
constexpr float kExponentShift = std::is_same_v<T, __half> ? 14.0f : 0.0f;

// One block per row, which is kept in shared memory: each logit is read once, and its exponential
// is computed once. Each thread accesses only its own columns of the copy.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_row_kernel(T* logits, const std::int32_t* targets, float scale, float* losses,
                             std::int64_t vocab, std::int64_t stride) {
  __shared__ float maxima[kMostWarps];
  __shared__ float sums[kMostWarps];
  T* kept = static_cast<T*>(dynamic_shared_memory());  // (stride)
  const std::int64_t row = blockIdx.x;
  logits += row * stride;
  const std::int64_t target = targets[row];
  const float target_logit = to_float(logits[target]);
  const std::int64_t step = blockDim.x * kVector;
  const std::int64_t own = static_cast<std::int64_t>(threadIdx.x) * kVector;
  float highest = -INFINITY;
  for (std::int64_t column = own; column < stride; column += step) {
    Vector8 values = load8(logits + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = column + i < vocab ? values[i] : -INFINITY;
      highest = fmaxf(highest, values[i]);
    }
    store8(kept + column, values);
  }
  highest = block_maximum(highest, maxima);  // its barrier: all threads have read target_logit
  const float shift = kExponentShift<T> - highest * kLog2E;
  float sum = 0.0f;
  for (std::int64_t column = own; column < stride; column += step) {
    Vector8 values = load8(kept + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = exp2f(fmaf(values[i], kLog2E, shift));
      sum += values[i];
    }
    store8(kept + column, values);
  }
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) {
    losses[row] = logf(sum) - kExponentShift<T> / kLog2E + (highest - target_logit);
  }
  const float factor = scale / sum;
  for (std::int64_t column = own; column < stride; column += step) {
    Vector8 values = load8(kept + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = values[i] * factor - (column + i == target ? scale : 0.0f);
    }
    store8(logits + column, values);
  }
}

// The same for rows that do not fit in shared memory, in two passes over the row. The second pass
// finds most of it in the L2 cache, and computes the exponentials again.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_kernel(T* logits, const std::int32_t* targets, float scale, float* losses,
                         std::int64_t vocab, std::int64_t stride) {
  __shared__ float maxima[kMostWarps];
  __shared__ float sums[kMostWarps];
  const std::int64_t row = blockIdx.x;
  logits += row * stride;
  const std::int64_t target = targets[row];
  const float target_logit = to_float(logits[target]);
  const unsigned lane = threadIdx.x % 32;
  ExponentialSum total = warp_total(thread_part(logits, vocab));
  if (lane == 0) {
    maxima[threadIdx.x / 32] = total.maximum;
    sums[threadIdx.x / 32] = total.sum;
  }
  __syncthreads();  // all threads have read the logits, which are overwritten from here on
  total = warp_total(lane < blockDim.x / 32 ? ExponentialSum{maxima[lane], sums[lane]}
                                            : ExponentialSum{-INFINITY, 0.0f});
  if (threadIdx.x == 0) {
    losses[row] = logf(total.sum) + (total.maximum - target_logit);
  }
  const float factor = scale / total.sum;
  // From the end to the beginning, because the columns that were read last are still in the cache.
  const std::int64_t step = blockDim.x * kVector;
  const std::int64_t own = static_cast<std::int64_t>(threadIdx.x) * kVector;
  for (std::int64_t column = (stride - 1) / step * step + own; column >= 0; column -= step) {
    if (column >= stride) {
      continue;
    }
    Vector8 values = load8(logits + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float gradient =
          exponential(values[i], total.maximum) * factor - (column + i == target ? scale : 0.0f);
      values[i] = column + i < vocab ? gradient : 0.0f;
    }
    store8(logits + column, values);
  }
}

// Runs as one block: each thread sums its rows, then one thread adds the sums in a fixed order.
__global__ void __launch_bounds__(kMostThreads)
    add_losses_kernel(const float* losses, std::int64_t rows, double scale, double* total) {
  __shared__ double sums[kMostThreads];
  double sum = 0.0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kMostThreads) {
    sum += static_cast<double>(losses[row]);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  sum = 0.0;
  for (int thread = 0; thread < static_cast<int>(kMostThreads); ++thread) {
    sum += sums[thread];
  }
  *total += scale * sum;
}

/// Returns the largest row that is kept in shared memory, in bytes: two blocks of a multiprocessor
/// must have room for theirs.
std::size_t row_limit() {
  constexpr int kOther = 2048;  // the kernel's other shared memory, and the system's share
  int device = 0;
  int nbytes = 0;
  check(cudaGetDevice(&device), "reading the GPU's properties");
  check(cudaDeviceGetAttribute(&nbytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "reading the GPU's properties");
  return static_cast<std::size_t>(nbytes / 2 - kOther);
}

}  // namespace

template <class T>
void cross_entropy(cudaStream_t stream, T* logits, const std::int32_t* targets, float scale,
                   float* losses, std::int64_t rows, std::int64_t vocab, std::int64_t stride) {
  const unsigned threads = std::min(kMostThreads, blocks_for(stride / kVector, 32) * 32);
  const auto nbytes = static_cast<std::size_t>(stride) * sizeof(T);
  const bool fits = nbytes <= row_limit();
  launch(stream, "cross entropy",
         {.grid = dim3(static_cast<unsigned>(rows)),
          .block = dim3(threads),
          .shared_nbytes = fits ? nbytes : 0},
         fits ? cross_entropy_row_kernel<T> : cross_entropy_kernel<T>, logits, targets, scale,
         losses, vocab, stride);
}

void add_losses(cudaStream_t stream, const float* losses, std::int64_t rows, double scale,
                double* total) {
  launch(stream, "loss", {.grid = dim3(1), .block = dim3(kMostThreads)}, add_losses_kernel, losses,
         rows, scale, total);
}

#define INSTANTIATE(T)                                                                 \
  template void cross_entropy<T>(cudaStream_t, T*, const std::int32_t*, float, float*, \
                                 std::int64_t, std::int64_t, std::int64_t);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
