// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/attention_head.cuh"
#include "cuda/kernels/attention_tensor.hpp"

namespace train_gpt::cuda {
namespace {

/// Returns the maximum over the four lanes that share a row.
__device__ float row_maximum(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// State of the online softmax over the keys processed so far (FlashAttention-2, arXiv 2307.08691,
/// section 3.1). Each lane has two rows of each tile.
template <int MT>
struct RunningSoftmax {
  float maximum[MT][2];  // maximum of the scores
  float sum[MT][2];      // sum of the exponentials in this lane's columns

  __device__ RunningSoftmax() {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        maximum[m][half] = -INFINITY;
        sum[m][half] = 0.0f;
      }
    }
  }

  /// Replaces scores by exponentials relative to the new maximum, and rescales `result` to it.
  template <int NT, int CT>
  __device__ void add(float (&scores)[MT][NT][4], float (&result)[MT][CT][4], float scale) {
    const float scale_log2 = scale * kLog2E;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = maximum[m][half];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        highest = row_maximum(highest);
        const float shift = highest * scale_log2;
        const float shrink = fast_exp2(maximum[m][half] * scale_log2 - shift);
        maximum[m][half] = highest;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = fast_exp2(scores[m][n][i] * scale_log2 - shift);
            added += scores[m][n][i];
          }
        }
        sum[m][half] = sum[m][half] * shrink + added;
#pragma unroll
        for (int c = 0; c < CT; ++c) {
          result[m][c][2 * half] *= shrink;
          result[m][c][2 * half + 1] *= shrink;
        }
      }
    }
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(AttentionArguments<T> arguments) {
  constexpr int MT = kQueryTiles;
  T* shared = static_cast<T*>(dynamic_shared_memory());
  const Tile<T, D> q_tile{shared};
  const Tile<T, D> k_tile{shared + kQueries * D};
  const Tile<T, D> v_tile{k_tile.data + kKeys<D> * D};

  // Blocks with the most keys start first, so that short blocks fill the gaps at the end.
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end_key = min(first_query + kQueries, arguments.time);
  const HeadRows<D, const T> q(arguments.qkv, arguments, 3, 0);
  const HeadRows<D, const T> k(arguments.qkv, arguments, 3, 1);
  const HeadRows<D, const T> v(arguments.qkv, arguments, 3, 2);
  const int warp_row = warp_index() * 16 * MT;
  const int warp_query = first_query + warp_row;

  load_rows<kQueries>(q_tile, q.row(first_query), q.stride, arguments.time - first_query);
  load_rows<kKeys<D>>(k_tile, k.row(0), k.stride, arguments.time);
  commit_copies();
  float result[MT][D / 8][4];
  clear(result);
  RunningSoftmax<MT> softmax;
  for (int key = 0; key < end_key; key += kKeys<D>) {
    const bool visible = key < warp_query + 16 * MT;
    float scores[MT][kKeys<D> / 8][4];
    wait_for_copies<0>();
    __syncthreads();  // keys have arrived, and no thread reads the old values any more
    load_rows<kKeys<D>>(v_tile, v.row(key), v.stride, arguments.time - key);
    commit_copies();
    if (visible) {
      clear(scores);
      multiply_rows(scores, q_tile, warp_row, k_tile, 0);
      if ((key + kKeys<D>) > warp_query) {
        hide_future(scores, warp_query, key);
      }
      softmax.add(scores, result, arguments.scale);
    }
    wait_for_copies<0>();
    __syncthreads();  // values have arrived, and no thread reads the old keys any more
    if (key + kKeys<D> < end_key) {
      load_rows<kKeys<D>>(k_tile, k.row(key + kKeys<D>), k.stride, arguments.time - key - kKeys<D>);
      commit_copies();
    }
    if (visible) {
      multiply_columns(result, scores, v_tile, 0);
    }
  }

  float inverse[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(softmax.sum[m][half]);
      inverse[m][half] = 1.0f / sum;
      const int query = warp_query + 16 * m + 8 * half + lane_index() / 4;
      if (lane_index() % 4 == 0 && query < arguments.time) {
        arguments.log_sum[statistics_offset(arguments) + query] =
            softmax.maximum[m][half] * arguments.scale + logf(sum);
      }
    }
  }
  const HeadRows<D, T> out(arguments.result, arguments, 1, 0);
  put_rows(q_tile, warp_row, result, inverse);
  store_rows<16 * MT>(q_tile, warp_row, out.row(first_query), out.stride,
                      arguments.time - first_query);
}

template <class T, int D>
void forward(cudaStream_t stream, const AttentionShape& shape,
             const AttentionArguments<T>& arguments) {
  launch(stream, "attention", launch_shape<D>(shape, kQueries, kQueries + 2 * kKeys<D>),
         attention_forward_kernel<T, D>, arguments);
}

}  // namespace

bool tensor_attention_supports(std::int64_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

template <class T>
void tensor_attention_forward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                              T* out, float* log_sum) {
  auto arguments = common_arguments<T>(shape);
  arguments.qkv = qkv;
  arguments.log_sum = log_sum;
  arguments.result = out;
  shape.head_dim == 64 ? forward<T, 64>(stream, shape, arguments)
                       : forward<T, 128>(stream, shape, arguments);
}

#define INSTANTIATE(T)                                                                         \
  template void tensor_attention_forward<T>(cudaStream_t, const AttentionShape&, const T*, T*, \
                                            float*);
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)

}  // namespace train_gpt::cuda
