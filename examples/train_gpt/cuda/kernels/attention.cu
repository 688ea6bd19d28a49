// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector8.cuh"

#include <cmath>

// Causal attention for every dtype and head size, with one warp per row and without tensor cores.
// Used in fp32 and where cuDNN is missing or does not support the shape.

namespace train_gpt::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kMostD = static_cast<int>(kMaxHeadDim);
constexpr int kPerLane = kMostD / 32;

__device__ int lane_index() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// A row of results; its channels are distributed over the lanes of a warp.
struct LaneRow {
  float values[kPerLane];

  template <class T>
  __device__ void add(float weight, const T* row, int head_dim) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = 32 * i + lane_index();
      values[i] += d < head_dim ? weight * to_float(row[d]) : 0.0f;
    }
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      values[i] *= factor;
    }
  }
  template <class T>
  __device__ void store_scaled(T* row, int head_dim, float factor) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = 32 * i + lane_index();
      if (d < head_dim) {
        store(row + d, values[i] * factor);
      }
    }
  }
};

/// Shared memory of a warp: two rows of its own, and two numbers for each of 32 other rows.
struct WarpMemory {
  float first_row[kMostD];
  float second_row[kMostD];
  float first_weights[32];
  float second_weights[32];
};

/// Copies one row to shared memory as fp32. All lanes take part.
template <class T>
__device__ void keep(float* kept, const T* row, int head_dim) {
  for (int d = lane_index(); d < head_dim; d += 32) {
    kept[d] = to_float(row[d]);
  }
  __syncwarp();
}

/// Returns the dot product of two rows, computed by a single lane.
template <class T>
__device__ float dot(const float* kept, const T* row, int head_dim) {
  float sum = 0.0f;
  for (int d = 0; d < head_dim; ++d) {
    sum += kept[d] * to_float(row[d]);
  }
  return sum;
}

struct Sizes {
  int time;
  int heads;
  int head_dim;
  float scale;

  /// Returns row t of part `part` of this block's head in a tensor (B, T, parts, H, D).
  template <class T>
  __device__ T* row(T* tensor, int parts, int part, int t) const {
    const int head = static_cast<int>(blockIdx.x) % heads;
    const std::int64_t sequence = static_cast<int>(blockIdx.x) / heads;
    return tensor + (((sequence * time + t) * parts + part) * heads + head) * head_dim;
  }
  __device__ std::int64_t statistics(int t) const {
    return static_cast<std::int64_t>(blockIdx.x) * time + t;
  }
  /// Returns the row of this warp; it may be beyond the last row.
  __device__ int own_row() const {
    return static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  }
};

// In each kernel a warp processes the other rows in groups of 32. First each lane computes the dot
// products of one row of the group; then all lanes add the weighted rows, each lane some channels.

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Sizes sizes, const T* qkv, T* out, float* log_sum) {
  __shared__ WarpMemory memories[kWarps];
  WarpMemory& memory = memories[threadIdx.x / 32];
  const int query = sizes.own_row();
  if (query >= sizes.time) {
    return;
  }
  keep(memory.first_row, sizes.row(qkv, 3, 0, query), sizes.head_dim);
  LaneRow result{};
  float maximum = -INFINITY;
  float sum = 0.0f;  // sum over the keys of this lane
  for (int first = 0; first <= query; first += 32) {
    const int key = first + lane_index();
    const float score =
        key <= query
            ? dot(memory.first_row, sizes.row(qkv, 3, 1, key), sizes.head_dim) * sizes.scale
            : -INFINITY;
    const float highest = fmaxf(maximum, warp_maximum(score));
    const float shrink = expf(maximum - highest);
    const float weight = expf(score - highest);
    maximum = highest;
    sum = sum * shrink + weight;
    result.scale(shrink);
    memory.first_weights[lane_index()] = weight;
    __syncwarp();
    for (int i = 0; i < 32 && first + i <= query; ++i) {
      result.add(memory.first_weights[i], sizes.row(qkv, 3, 2, first + i), sizes.head_dim);
    }
    __syncwarp();
  }
  sum = warp_sum(sum);
  result.store_scaled(sizes.row(out, 1, 0, query), sizes.head_dim, 1.0f / sum);
  if (lane_index() == 0) {
    log_sum[sizes.statistics(query)] = maximum + logf(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(Sizes sizes, const T* out, const T* d_out, float* delta) {
  const int query = sizes.own_row();
  if (query >= sizes.time) {
    return;
  }
  float sum = 0.0f;
  for (int d = lane_index(); d < sizes.head_dim; d += 32) {
    sum += to_float(sizes.row(out, 1, 0, query)[d]) * to_float(sizes.row(d_out, 1, 0, query)[d]);
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) {
    delta[sizes.statistics(query)] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    query_gradient_kernel(Sizes sizes, const T* qkv, const T* d_out, const float* log_sum,
                          const float* delta, T* dqkv) {
  __shared__ WarpMemory memories[kWarps];
  WarpMemory& memory = memories[threadIdx.x / 32];
  const int query = sizes.own_row();
  if (query >= sizes.time) {
    return;
  }
  keep(memory.first_row, sizes.row(qkv, 3, 0, query), sizes.head_dim);
  keep(memory.second_row, sizes.row(d_out, 1, 0, query), sizes.head_dim);
  const std::int64_t at = sizes.statistics(query);
  LaneRow dq{};
  for (int first = 0; first <= query; first += 32) {
    const int key = first + lane_index();
    if (key <= query) {
      const float score = dot(memory.first_row, sizes.row(qkv, 3, 1, key), sizes.head_dim);
      const float d_weight = dot(memory.second_row, sizes.row(qkv, 3, 2, key), sizes.head_dim);
      memory.first_weights[lane_index()] =
          expf(score * sizes.scale - log_sum[at]) * (d_weight - delta[at]);
    }
    __syncwarp();
    for (int i = 0; i < 32 && first + i <= query; ++i) {
      dq.add(memory.first_weights[i], sizes.row(qkv, 3, 1, first + i), sizes.head_dim);
    }
    __syncwarp();
  }
  dq.store_scaled(sizes.row(dqkv, 3, 0, query), sizes.head_dim, sizes.scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    key_gradient_kernel(Sizes sizes, const T* qkv, const T* d_out, const float* log_sum,
                        const float* delta, T* dqkv) {
  __shared__ WarpMemory memories[kWarps];
  WarpMemory& memory = memories[threadIdx.x / 32];
  const int key = sizes.own_row();
  if (key >= sizes.time) {
    return;
  }
  keep(memory.first_row, sizes.row(qkv, 3, 1, key), sizes.head_dim);
  keep(memory.second_row, sizes.row(qkv, 3, 2, key), sizes.head_dim);
  LaneRow dk{};
  LaneRow dv{};
  for (int first = key; first < sizes.time; first += 32) {
    const int query = first + lane_index();
    if (query < sizes.time) {
      const std::int64_t at = sizes.statistics(query);
      const float score = dot(memory.first_row, sizes.row(qkv, 3, 0, query), sizes.head_dim);
      const float d_weight = dot(memory.second_row, sizes.row(d_out, 1, 0, query), sizes.head_dim);
      const float weight = expf(score * sizes.scale - log_sum[at]);
      memory.first_weights[lane_index()] = weight;
      memory.second_weights[lane_index()] = weight * (d_weight - delta[at]);
    }
    __syncwarp();
    for (int i = 0; i < 32 && first + i < sizes.time; ++i) {
      dv.add(memory.first_weights[i], sizes.row(d_out, 1, 0, first + i), sizes.head_dim);
      dk.add(memory.second_weights[i], sizes.row(qkv, 3, 0, first + i), sizes.head_dim);
    }
    __syncwarp();
  }
  dk.store_scaled(sizes.row(dqkv, 3, 1, key), sizes.head_dim, sizes.scale);
  dv.store_scaled(sizes.row(dqkv, 3, 2, key), sizes.head_dim, 1.0f);
}

Sizes sizes_of(const AttentionShape& shape) {
  return {static_cast<int>(shape.time), static_cast<int>(shape.heads),
          static_cast<int>(shape.head_dim), 1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
}

LaunchShape launch_shape(const AttentionShape& shape) {
  return {.grid = dim3(static_cast<unsigned>(shape.batch * shape.heads),
                       blocks_for(shape.time, kWarps)),
          .block = dim3(kThreads)};
}

}  // namespace

template <class T>
void attention_forward(cudaStream_t stream, const AttentionShape& shape, const T* qkv, T* out,
                       float* log_sum) {
  launch(stream, "attention", launch_shape(shape), forward_kernel<T>, sizes_of(shape), qkv, out,
         log_sum);
}

template <class T>
void attention_backward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                        const T* out, const float* log_sum, const T* d_out, float* delta, T* dqkv) {
  const Sizes sizes = sizes_of(shape);
  launch(stream, "attention's gradient", launch_shape(shape), delta_kernel<T>, sizes, out, d_out,
         delta);
  launch(stream, "attention's gradient of queries", launch_shape(shape), query_gradient_kernel<T>,
         sizes, qkv, d_out, log_sum, delta, dqkv);
  launch(stream, "attention's gradient of keys and values", launch_shape(shape),
         key_gradient_kernel<T>, sizes, qkv, d_out, log_sum, delta, dqkv);
}

#define INSTANTIATE(T)                                                                           \
  template void attention_forward<T>(cudaStream_t, const AttentionShape&, const T*, T*, float*); \
  template void attention_backward<T>(cudaStream_t, const AttentionShape&, const T*, const T*,   \
                                      const float*, const T*, float*, T*);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
