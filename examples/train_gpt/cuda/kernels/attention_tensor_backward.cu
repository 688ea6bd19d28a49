// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/attention_head.cuh"
#include "cuda/kernels/attention_tensor.hpp"
#include "cuda/kernels/vector8.cuh"

namespace train_gpt::cuda {
namespace {

constexpr int kDeltaThreads = 256;

// delta (B, H, T) = out . d_out. Each thread multiplies eight channels; D / 8 consecutive threads
// belong to one head.
template <class T, int D>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(const T* out, const T* d_out, float* delta, int time, int heads,
                           std::int64_t count) {
  constexpr int kLanes = D / 8;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x;
  float sum = 0.0f;
  if (index < count) {
    const Vector8 values = load8(out + index * 8);
    const Vector8 gradients = load8(d_out + index * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum += values[i] * gradients[i];
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  if (index < count && index % kLanes == 0) {
    const std::int64_t head = index / kLanes % heads;
    const std::int64_t row = index / kLanes / heads;
    delta[(row / time * heads + head) * time + row % time] = sum;
  }
}

// Backward. P = exp(scale S - log_sum) and dS = P (dP - delta) are recomputed. The first kernel
// computes dQ = scale dS K; each block has some queries and loops over the keys.

constexpr int kInnerColumns = 32;  // columns of P and dP that are in registers at the same time

template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    attention_query_gradient_kernel(AttentionArguments<T> arguments) {
  constexpr int MT = kQueryTiles;
  constexpr int NT = kInnerColumns / 8;
  T* shared = static_cast<T*>(dynamic_shared_memory());
  const Tile<T, D> q_tile{shared};
  const Tile<T, D> d_out_tile{shared + kQueries * D};
  T* stages = d_out_tile.data + kQueries * D;  // two of (keys, values)

  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end_key = min(first_query + kQueries, arguments.time);
  const HeadRows<D, const T> q(arguments.qkv, arguments, 3, 0);
  const HeadRows<D, const T> k(arguments.qkv, arguments, 3, 1);
  const HeadRows<D, const T> v(arguments.qkv, arguments, 3, 2);
  const HeadRows<D, const T> d_out(arguments.d_out, arguments, 1, 0);
  const int warp_row = warp_index() * 16 * MT;
  const int warp_query = first_query + warp_row;
  const float scale_log2 = arguments.scale * kLog2E;

  const auto load_stage = [&](int key) {
    T* stage = stages + key / kKeys<D> % 2 * 2 * kKeys<D> * D;
    load_rows<kKeys<D>>(Tile<T, D>{stage}, k.row(key), k.stride, arguments.time - key);
    load_rows<kKeys<D>>(Tile<T, D>{stage + kKeys<D> * D}, v.row(key), v.stride,
                        arguments.time - key);
    commit_copies();
  };
  load_rows<kQueries>(q_tile, q.row(first_query), q.stride, arguments.time - first_query);
  load_rows<kQueries>(d_out_tile, d_out.row(first_query), d_out.stride,
                      arguments.time - first_query);
  load_stage(0);
  float log_sum[MT][2];  // base-2 logarithm
  float delta[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + 16 * m + 8 * half + lane_index() / 4;
      const bool inside = query < arguments.time;
      const std::int64_t at = statistics_offset(arguments) + (inside ? query : 0);
      log_sum[m][half] = inside ? arguments.log_sum[at] * kLog2E : INFINITY;
      delta[m][half] = inside ? arguments.delta[at] : 0.0f;
    }
  }
  float result[MT][D / 8][4];
  clear(result);
  for (int key = 0; key < end_key; key += kKeys<D>) {
    wait_for_copies<0>();
    __syncthreads();  // this stage is here, and nobody reads the other any more
    if (key + kKeys<D> < end_key) {
      load_stage(key + kKeys<D>);
    }
    const Tile<T, D> k_tile{stages + key / kKeys<D> % 2 * 2 * kKeys<D> * D};
    const Tile<T, D> v_tile{k_tile.data + kKeys<D> * D};
#pragma unroll 1
    for (int part = 0; part < kKeys<D>; part += kInnerColumns) {
      const int first_key = key + part;
      if (first_key >= warp_query + 16 * MT) {
        break;
      }
      float p[MT][NT][4];
      clear(p);
      multiply_rows(p, q_tile, warp_row, k_tile, part);
      if (first_key + kInnerColumns > warp_query) {
        hide_future(p, warp_query, first_key);
      }
      float ds[MT][NT][4];
      clear(ds);
      multiply_rows(ds, d_out_tile, warp_row, v_tile, part);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float weight = fast_exp2(p[m][n][i] * scale_log2 - log_sum[m][i / 2]);
            ds[m][n][i] = weight * (ds[m][n][i] - delta[m][i / 2]);
          }
        }
      }
      multiply_columns(result, ds, k_tile, part);
    }
  }

  float scales[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    scales[m][0] = scales[m][1] = arguments.scale;
  }
  const HeadRows<D, T> dq(arguments.result, arguments, 3, 0);
  put_rows(q_tile, warp_row, result, scales);
  store_rows<16 * MT>(q_tile, warp_row, dq.row(first_query), dq.stride,
                      arguments.time - first_query);
}

// The second kernel computes dV = P^T dO and dK = scale dS^T Q; each block has some keys and loops
// over the queries.

constexpr int kQueryStep = 64;  // queries per step of the loop
/// Tiles of each of a warp's two results; limited by the number of registers.
template <int D>
constexpr int kKeyTiles = D == 64 ? 2 : 1;
template <int D>
constexpr int kBlockKeys = kWarps * 16 * kKeyTiles<D>;

template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    attention_key_gradient_kernel(AttentionArguments<T> arguments) {
  constexpr int MT = kKeyTiles<D>;
  constexpr int NT = kInnerColumns / 8;
  T* shared = static_cast<T*>(dynamic_shared_memory());
  const Tile<T, D> k_tile{shared};
  const Tile<T, D> v_tile{shared + kBlockKeys<D> * D};
  T* stages = v_tile.data + kBlockKeys<D> * D;  // two of (queries, d_out)
  auto* statistics =
      reinterpret_cast<float*>(stages + 4 * kQueryStep * D);  // two of (log_sum, delta)

  const int first_key = static_cast<int>(blockIdx.y) * kBlockKeys<D>;
  const HeadRows<D, const T> q(arguments.qkv, arguments, 3, 0);
  const HeadRows<D, const T> k(arguments.qkv, arguments, 3, 1);
  const HeadRows<D, const T> v(arguments.qkv, arguments, 3, 2);
  const HeadRows<D, const T> d_out(arguments.d_out, arguments, 1, 0);
  const int warp_row = warp_index() * 16 * MT;
  const int warp_key = first_key + warp_row;
  const float scale_log2 = arguments.scale * kLog2E;

  const auto load_stage = [&](int query) {
    const int number = query / kQueryStep % 2;
    T* stage = stages + number * 2 * kQueryStep * D;
    load_rows<kQueryStep>(Tile<T, D>{stage}, q.row(query), q.stride, arguments.time - query);
    load_rows<kQueryStep>(Tile<T, D>{stage + kQueryStep * D}, d_out.row(query), d_out.stride,
                          arguments.time - query);
    commit_copies();
    const int index = static_cast<int>(threadIdx.x);  // half of the threads per statistic
    const int row = query + index % kQueryStep;
    const bool inside = row < arguments.time;
    const std::int64_t at = statistics_offset(arguments) + (inside ? row : 0);
    static_assert(kThreads == 2 * kQueryStep);
    statistics[number * kThreads + index] =
        index < kQueryStep ? (inside ? arguments.log_sum[at] * kLog2E : INFINITY)
                           : (inside ? arguments.delta[at] : 0.0f);
  };
  load_rows<kBlockKeys<D>>(k_tile, k.row(first_key), k.stride, arguments.time - first_key);
  load_rows<kBlockKeys<D>>(v_tile, v.row(first_key), v.stride, arguments.time - first_key);
  load_stage(first_key);
  float dk[MT][D / 8][4];
  float dv[MT][D / 8][4];
  clear(dk);
  clear(dv);
  for (int query = first_key; query < arguments.time; query += kQueryStep) {
    wait_for_copies<0>();
    __syncthreads();  // this stage is here, and nobody reads the other any more
    if (query + kQueryStep < arguments.time) {
      load_stage(query + kQueryStep);
    }
    const int number = query / kQueryStep % 2;
    const Tile<T, D> q_tile{stages + number * 2 * kQueryStep * D};
    const Tile<T, D> d_out_tile{q_tile.data + kQueryStep * D};
#pragma unroll 1
    for (int part = 0; part < kQueryStep; part += kInnerColumns) {
      const int first_query = query + part;
      if (first_query + kInnerColumns <= warp_key) {
        continue;
      }
      const float* log_sum = statistics + number * kThreads + part;
      const float* delta = log_sum + kQueryStep;
      const int column = 2 * (lane_index() % 4);
      float p[MT][NT][4];
      clear(p);
      multiply_rows(p, k_tile, warp_row, q_tile, part);
      if (first_query < warp_key + 16 * MT) {
        hide_past(p, warp_key, first_query);
      }
#pragma unroll
      for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            p[m][n][i] = fast_exp2(p[m][n][i] * scale_log2 - log_sum[8 * n + column + i % 2]);
          }
        }
      }
      multiply_columns(dv, p, d_out_tile, part);
      float ds[MT][NT][4];
      clear(ds);
      multiply_rows(ds, v_tile, warp_row, d_out_tile, part);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta[8 * n + column + i % 2]);
          }
        }
      }
      multiply_columns(dk, ds, q_tile, part);
    }
  }

  float scales[MT][2];
  float ones[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    scales[m][0] = scales[m][1] = arguments.scale;
    ones[m][0] = ones[m][1] = 1.0f;
  }
  const HeadRows<D, T> dk_rows(arguments.result, arguments, 3, 1);
  const HeadRows<D, T> dv_rows(arguments.result, arguments, 3, 2);
  const int valid = arguments.time - first_key;
  put_rows(k_tile, warp_row, dk, scales);
  store_rows<16 * MT>(k_tile, warp_row, dk_rows.row(first_key), dk_rows.stride, valid);
  put_rows(v_tile, warp_row, dv, ones);
  store_rows<16 * MT>(v_tile, warp_row, dv_rows.row(first_key), dv_rows.stride, valid);
}

template <class T, int D>
void backward(cudaStream_t stream, const AttentionShape& shape,
              const AttentionArguments<T>& arguments) {
  launch(stream, "attention's gradient of keys and values",
         launch_shape<D>(shape, kBlockKeys<D>, 2 * kBlockKeys<D> + 4 * kQueryStep,
                         2 * kThreads * sizeof(float)),
         attention_key_gradient_kernel<T, D>, arguments);
  launch(stream, "attention's gradient of queries",
         launch_shape<D>(shape, kQueries, 2 * kQueries + 4 * kKeys<D>),
         attention_query_gradient_kernel<T, D>, arguments);
}

}  // namespace

template <class T>
void tensor_attention_backward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                               const T* out, const float* log_sum, const T* d_out, float* delta,
                               T* dqkv) {
  const std::int64_t count = shape.batch * shape.time * shape.channels() / kVector;
  launch(stream, "attention's gradient",
         {.grid = dim3(blocks_for(count, kDeltaThreads)), .block = dim3(kDeltaThreads)},
         shape.head_dim == 64 ? attention_delta_kernel<T, 64> : attention_delta_kernel<T, 128>, out,
         d_out, delta, static_cast<int>(shape.time), static_cast<int>(shape.heads), count);
  auto arguments = common_arguments<T>(shape);
  arguments.qkv = qkv;
  arguments.d_out = d_out;
  arguments.delta = delta;
  arguments.log_sum = const_cast<float*>(log_sum);  // only the forward writes it
  arguments.result = dqkv;
  shape.head_dim == 64 ? backward<T, 64>(stream, shape, arguments)
                       : backward<T, 128>(stream, shape, arguments);
}

#define INSTANTIATE(T)                                                                      \
  template void tensor_attention_backward<T>(cudaStream_t, const AttentionShape&, const T*, \
                                             const T*, const float*, const T*, float*, T*);
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
