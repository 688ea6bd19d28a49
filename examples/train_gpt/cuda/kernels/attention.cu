#include "../kernels.hpp"
#include "attention_tensor.hpp"
#include "launch.cuh"
#include "reduce.cuh"
#include "vector8.cuh"

#include <cmath>
#include <type_traits>

// Causal attention for every dtype and head size, one warp a row and no tensor cores: for parity
// checks in fp32 and for heads that attention_tensor.cu was not made for.

namespace train_gpt::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kPerLane = static_cast<int>(kMaxHeadDim) / 32;

/// A row of one head, spread over the lanes of a warp; channels beyond D are zero.
struct LaneRow {
  float values[kPerLane];

  template <class T>
  __device__ static LaneRow load(const T* row, int head_dim) {
    LaneRow result{};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = 32 * i + static_cast<int>(threadIdx.x) % 32;
      result.values[i] = d < head_dim ? to_float(row[d]) : 0.0f;
    }
    return result;
  }
  template <class T>
  __device__ void store_scaled(T* row, int head_dim, float factor) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = 32 * i + static_cast<int>(threadIdx.x) % 32;
      if (d < head_dim) {
        store(row + d, values[i] * factor);
      }
    }
  }
  __device__ float dot(const LaneRow& other) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      sum += values[i] * other.values[i];
    }
    return warp_sum(sum);
  }
  __device__ void scale_and_add(float factor, float weight, const LaneRow& other) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      values[i] = values[i] * factor + weight * other.values[i];
    }
  }
};

struct Sizes {
  int time;
  int heads;
  int head_dim;
  float scale;

  /// Row t of part `part` of this block's head in (B, T, parts, H, D).
  template <class T>
  __device__ T* row(T* tensor, int parts, int part, int t) const {
    const int head = static_cast<int>(blockIdx.x) % heads;
    const std::int64_t sequence = static_cast<int>(blockIdx.x) / heads;
    return tensor + (((sequence * time + t) * parts + part) * heads + head) * head_dim;
  }
  template <class T>
  __device__ LaneRow load(const T* tensor, int parts, int part, int t) const {
    return LaneRow::load(row(tensor, parts, part, t), head_dim);
  }
  __device__ std::int64_t statistics(int t) const {
    return static_cast<std::int64_t>(blockIdx.x) * time + t;
  }
  /// The warp's row; warps beyond the last one have nothing to do.
  __device__ int own_row() const {
    return static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Sizes sizes, const T* qkv, T* out, float* log_sum) {
  const int query = sizes.own_row();
  if (query >= sizes.time) {
    return;
  }
  const LaneRow q = sizes.load(qkv, 3, 0, query);
  LaneRow result{};
  float maximum = -INFINITY;
  float sum = 0.0f;
  for (int key = 0; key <= query; ++key) {
    const float score = q.dot(sizes.load(qkv, 3, 1, key)) * sizes.scale;
    const float highest = fmaxf(maximum, score);
    const float shrink = expf(maximum - highest);
    const float weight = expf(score - highest);
    result.scale_and_add(shrink, weight, sizes.load(qkv, 3, 2, key));
    sum = sum * shrink + weight;
    maximum = highest;
  }
  result.store_scaled(sizes.row(out, 1, 0, query), sizes.head_dim, 1.0f / sum);
  if (threadIdx.x % 32 == 0) {
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
  const float sum = sizes.load(out, 1, 0, query).dot(sizes.load(d_out, 1, 0, query));
  if (threadIdx.x % 32 == 0) {
    delta[sizes.statistics(query)] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    query_gradient_kernel(Sizes sizes, const T* qkv, const T* d_out, const float* log_sum,
                          const float* delta, T* dqkv) {
  const int query = sizes.own_row();
  if (query >= sizes.time) {
    return;
  }
  const LaneRow q = sizes.load(qkv, 3, 0, query);
  const LaneRow d_result = sizes.load(d_out, 1, 0, query);
  const std::int64_t at = sizes.statistics(query);
  LaneRow dq{};
  for (int key = 0; key <= query; ++key) {
    const LaneRow k = sizes.load(qkv, 3, 1, key);
    const float weight = expf(q.dot(k) * sizes.scale - log_sum[at]);
    const float d_weight = d_result.dot(sizes.load(qkv, 3, 2, key));
    dq.scale_and_add(1.0f, weight * (d_weight - delta[at]), k);
  }
  dq.store_scaled(sizes.row(dqkv, 3, 0, query), sizes.head_dim, sizes.scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    key_gradient_kernel(Sizes sizes, const T* qkv, const T* d_out, const float* log_sum,
                        const float* delta, T* dqkv) {
  const int key = sizes.own_row();
  if (key >= sizes.time) {
    return;
  }
  const LaneRow k = sizes.load(qkv, 3, 1, key);
  const LaneRow v = sizes.load(qkv, 3, 2, key);
  LaneRow dk{};
  LaneRow dv{};
  for (int query = key; query < sizes.time; ++query) {
    const LaneRow q = sizes.load(qkv, 3, 0, query);
    const LaneRow d_result = sizes.load(d_out, 1, 0, query);
    const std::int64_t at = sizes.statistics(query);
    const float weight = expf(q.dot(k) * sizes.scale - log_sum[at]);
    dv.scale_and_add(1.0f, weight, d_result);
    dk.scale_and_add(1.0f, weight * (d_result.dot(v) - delta[at]), q);
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

template <class T>
constexpr bool kTensorCores = std::is_same_v<T, __nv_bfloat16>;

}  // namespace

template <class T>
void attention_forward(cudaStream_t stream, const AttentionShape& shape, const T* qkv, T* out,
                       float* log_sum) {
  if constexpr (kTensorCores<T>) {
    if (tensor_attention_supports(shape.head_dim)) {
      tensor_attention_forward(stream, shape, qkv, out, log_sum);
      return;
    }
  }
  launch(stream, "attention", launch_shape(shape), forward_kernel<T>, sizes_of(shape), qkv, out,
         log_sum);
}

template <class T>
void attention_backward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                        const T* out, const float* log_sum, const T* d_out, float* delta, T* dqkv) {
  const Sizes sizes = sizes_of(shape);
  if constexpr (kTensorCores<T>) {
    if (tensor_attention_supports(shape.head_dim)) {
      tensor_attention_backward(stream, shape, qkv, out, log_sum, d_out, delta, dqkv);
      return;
    }
  }
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

}  // namespace train_gpt::cuda
