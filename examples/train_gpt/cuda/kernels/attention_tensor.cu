#include "attention_tensor.hpp"
#include "attention_tile.cuh"
#include "launch.cuh"
#include "shared_memory.cuh"
#include "vector8.cuh"

#include <cmath>

// Causal attention on tensor cores: FlashAttention-2 (arXiv 2307.08691), with the backward in two
// kernels, so that each gradient is summed by one block in a fixed order.

namespace train_gpt::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

constexpr int kQueryTiles = 2;  // of 16 rows, of a warp's result
constexpr int kQueries = kWarps * 16 * kQueryTiles;
/// Keys of one step: as many as leave room in registers.
template <int D>
constexpr int kKeys = D == 64 ? 64 : 32;

struct Arguments {
  const bf16* qkv;     // (B, T, 3, H, D)
  const bf16* d_out;   // (B, T, H, D)
  const float* delta;  // (B, H, T): out . d_out
  float* log_sum;      // (B, H, T)
  bf16* result;        // out or dqkv
  int time;
  int heads;
  float scale;
};

/// Where one head of one sequence lies in (B, T, parts, H, D).
template <int D, class Element>
struct HeadRows {
  Element* first;
  std::int64_t stride;

  __device__ HeadRows(Element* tensor, const Arguments& arguments, int parts, int part)
      : first(tensor), stride(static_cast<std::int64_t>(parts) * arguments.heads * D) {
    const int head = static_cast<int>(blockIdx.x) % arguments.heads;
    const std::int64_t sequence = static_cast<int>(blockIdx.x) / arguments.heads;
    first += sequence * arguments.time * stride + (part * arguments.heads + head) * D;
  }
  __device__ Element* row(int index) const { return first + index * stride; }
};

__device__ std::int64_t statistics_offset(const Arguments& arguments) {
  return static_cast<std::int64_t>(blockIdx.x) * arguments.time;
}

__device__ int warp_index() {
  return static_cast<int>(threadIdx.x) / 32;
}
__device__ int lane_index() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// Over the four lanes that share a row.
__device__ float row_maximum(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// Hides keys after the query: rows are queries from `query` on, columns keys from `key` on.
template <int MT, int NT>
__device__ void hide_future(float (&scores)[MT][NT][4], int query, int key) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = query + 16 * m + 8 * (i / 2) + lane / 4;
        const int column = key + 8 * n + 2 * (lane % 4) + i % 2;
        scores[m][n][i] = column > row ? -INFINITY : scores[m][n][i];
      }
    }
  }
}

/// What the softmax knows of the keys so far; two rows a lane in each tile.
template <int MT>
struct RunningSoftmax {
  float maximum[MT][2];  // of the scores
  float sum[MT][2];      // of exponentials, of this lane's columns alone

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

  /// Scores become exponentials relative to the new maximum, to which `result` is scaled.
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

template <int D>
__global__ void __launch_bounds__(kThreads) attention_forward_kernel(Arguments arguments) {
  constexpr int MT = kQueryTiles;
  bf16* shared = static_cast<bf16*>(dynamic_shared_memory());
  const Tile<D> q_tile{shared};
  const Tile<D> k_tile{shared + kQueries * D};
  const Tile<D> v_tile{k_tile.data + kKeys<D> * D};

  // The longest rows of work first.
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end_key = min(first_query + kQueries, arguments.time);
  const HeadRows<D, const bf16> q(arguments.qkv, arguments, 3, 0);
  const HeadRows<D, const bf16> k(arguments.qkv, arguments, 3, 1);
  const HeadRows<D, const bf16> v(arguments.qkv, arguments, 3, 2);
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
    __syncthreads();  // the keys are here, and nobody reads the values any more
    load_rows<kKeys<D>>(v_tile, v.row(key), v.stride, arguments.time - key);
    commit_copies();
    if (visible) {
      clear(scores);
      multiply_rows(scores, q_tile, warp_row, k_tile, 0);
      if (key + kKeys < D >> warp_query) {
        hide_future(scores, warp_query, key);
      }
      softmax.add(scores, result, arguments.scale);
    }
    wait_for_copies<0>();
    __syncthreads();  // the values are here, and nobody reads the keys any more
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
  const HeadRows<D, bf16> out(arguments.result, arguments, 1, 0);
  put_rows(q_tile, warp_row, result, inverse);
  store_rows<16 * MT>(q_tile, warp_row, out.row(first_query), out.stride,
                      arguments.time - first_query);
}

constexpr int kDeltaThreads = 256;

// delta (B, H, T) = out . d_out: eight channels a thread, D / 8 neighbouring threads a head.
template <int D>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(const bf16* out, const bf16* d_out, float* delta, int time, int heads,
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

// ---- backward, with P = exp(scale S - log_sum) and dS = P (dP - delta): dQ = scale dS K

constexpr int kInnerColumns = 32;  // of P and dP in registers at a time

template <int D>
__global__ void __launch_bounds__(kThreads) attention_query_gradient_kernel(Arguments arguments) {
  constexpr int MT = kQueryTiles;
  constexpr int NT = kInnerColumns / 8;
  bf16* shared = static_cast<bf16*>(dynamic_shared_memory());
  const Tile<D> q_tile{shared};
  const Tile<D> d_out_tile{shared + kQueries * D};
  bf16* stages = d_out_tile.data + kQueries * D;  // two of (keys, values)

  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int end_key = min(first_query + kQueries, arguments.time);
  const HeadRows<D, const bf16> q(arguments.qkv, arguments, 3, 0);
  const HeadRows<D, const bf16> k(arguments.qkv, arguments, 3, 1);
  const HeadRows<D, const bf16> v(arguments.qkv, arguments, 3, 2);
  const HeadRows<D, const bf16> d_out(arguments.d_out, arguments, 1, 0);
  const int warp_row = warp_index() * 16 * MT;
  const int warp_query = first_query + warp_row;
  const float scale_log2 = arguments.scale * kLog2E;

  const auto load_stage = [&](int key) {
    bf16* stage = stages + key / kKeys<D> % 2 * 2 * kKeys<D> * D;
    load_rows<kKeys<D>>(Tile<D>{stage}, k.row(key), k.stride, arguments.time - key);
    load_rows<kKeys<D>>(Tile<D>{stage + kKeys<D> * D}, v.row(key), v.stride, arguments.time - key);
    commit_copies();
  };
  load_rows<kQueries>(q_tile, q.row(first_query), q.stride, arguments.time - first_query);
  load_rows<kQueries>(d_out_tile, d_out.row(first_query), d_out.stride,
                      arguments.time - first_query);
  load_stage(0);
  float log_sum[MT][2];  // in powers of two
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
    const Tile<D> k_tile{stages + key / kKeys<D> % 2 * 2 * kKeys<D> * D};
    const Tile<D> v_tile{k_tile.data + kKeys<D> * D};
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
  const HeadRows<D, bf16> dq(arguments.result, arguments, 3, 0);
  put_rows(q_tile, warp_row, result, scales);
  store_rows<16 * MT>(q_tile, warp_row, dq.row(first_query), dq.stride,
                      arguments.time - first_query);
}

// The transposes, rows of keys: dV = P^T dO and dK = scale dS^T Q.

constexpr int kQueryStep = 64;  // queries of one step
/// Tiles of a warp's two results: as many as the registers hold.
template <int D>
constexpr int kKeyTiles = D == 64 ? 2 : 1;
template <int D>
constexpr int kBlockKeys = kWarps * 16 * kKeyTiles<D>;

template <int D>
__global__ void __launch_bounds__(kThreads) attention_key_gradient_kernel(Arguments arguments) {
  constexpr int MT = kKeyTiles<D>;
  constexpr int NT = kInnerColumns / 8;
  bf16* shared = static_cast<bf16*>(dynamic_shared_memory());
  const Tile<D> k_tile{shared};
  const Tile<D> v_tile{shared + kBlockKeys<D> * D};
  bf16* stages = v_tile.data + kBlockKeys<D> * D;  // two of (queries, d_out)
  auto* statistics =
      reinterpret_cast<float*>(stages + 4 * kQueryStep * D);  // two of (log_sum, delta)

  const int first_key = static_cast<int>(blockIdx.y) * kBlockKeys<D>;
  const HeadRows<D, const bf16> q(arguments.qkv, arguments, 3, 0);
  const HeadRows<D, const bf16> k(arguments.qkv, arguments, 3, 1);
  const HeadRows<D, const bf16> v(arguments.qkv, arguments, 3, 2);
  const HeadRows<D, const bf16> d_out(arguments.d_out, arguments, 1, 0);
  const int warp_row = warp_index() * 16 * MT;
  const int warp_key = first_key + warp_row;
  const float scale_log2 = arguments.scale * kLog2E;

  const auto load_stage = [&](int query) {
    const int number = query / kQueryStep % 2;
    bf16* stage = stages + number * 2 * kQueryStep * D;
    load_rows<kQueryStep>(Tile<D>{stage}, q.row(query), q.stride, arguments.time - query);
    load_rows<kQueryStep>(Tile<D>{stage + kQueryStep * D}, d_out.row(query), d_out.stride,
                          arguments.time - query);
    commit_copies();
    const int index = static_cast<int>(threadIdx.x);  // half of the threads for each statistic
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
    const Tile<D> q_tile{stages + number * 2 * kQueryStep * D};
    const Tile<D> d_out_tile{q_tile.data + kQueryStep * D};
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
#pragma unroll
      for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = warp_key + 16 * m + 8 * (i / 2) + lane_index() / 4;
            const int at = 8 * n + column + i % 2;
            const float weight = fast_exp2(p[m][n][i] * scale_log2 - log_sum[at]);
            p[m][n][i] = key > first_query + at ? 0.0f : weight;
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
  const HeadRows<D, bf16> dk_rows(arguments.result, arguments, 3, 1);
  const HeadRows<D, bf16> dv_rows(arguments.result, arguments, 3, 2);
  const int valid = arguments.time - first_key;
  put_rows(k_tile, warp_row, dk, scales);
  store_rows<16 * MT>(k_tile, warp_row, dk_rows.row(first_key), dk_rows.stride, valid);
  put_rows(v_tile, warp_row, dv, ones);
  store_rows<16 * MT>(v_tile, warp_row, dv_rows.row(first_key), dv_rows.stride, valid);
}

/// rows: of this kernel's results in a block. shared_rows: of D numbers in shared memory.
template <int D>
LaunchShape launch_shape(const AttentionShape& shape, int rows, int shared_rows,
                         std::size_t more_nbytes = 0) {
  return {
      .grid = dim3(static_cast<unsigned>(shape.batch * shape.heads), blocks_for(shape.time, rows)),
      .block = dim3(kThreads),
      .shared_nbytes = static_cast<std::size_t>(shared_rows) * D * sizeof(bf16) + more_nbytes};
}

Arguments common_arguments(const AttentionShape& shape) {
  Arguments arguments{};
  arguments.time = static_cast<int>(shape.time);
  arguments.heads = static_cast<int>(shape.heads);
  arguments.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return arguments;
}

template <int D>
void forward(cudaStream_t stream, const AttentionShape& shape, const Arguments& arguments) {
  launch(stream, "attention", launch_shape<D>(shape, kQueries, kQueries + 2 * kKeys<D>),
         attention_forward_kernel<D>, arguments);
}

template <int D>
void backward(cudaStream_t stream, const AttentionShape& shape, const Arguments& arguments) {
  launch(stream, "attention's gradient of keys and values",
         launch_shape<D>(shape, kBlockKeys<D>, 2 * kBlockKeys<D> + 4 * kQueryStep,
                         2 * kThreads * sizeof(float)),
         attention_key_gradient_kernel<D>, arguments);
  launch(stream, "attention's gradient of queries",
         launch_shape<D>(shape, kQueries, 2 * kQueries + 4 * kKeys<D>),
         attention_query_gradient_kernel<D>, arguments);
}

}  // namespace

bool tensor_attention_supports(std::int64_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

void tensor_attention_forward(cudaStream_t stream, const AttentionShape& shape, const bf16* qkv,
                              bf16* out, float* log_sum) {
  Arguments arguments = common_arguments(shape);
  arguments.qkv = qkv;
  arguments.log_sum = log_sum;
  arguments.result = out;
  shape.head_dim == 64 ? forward<64>(stream, shape, arguments)
                       : forward<128>(stream, shape, arguments);
}

void tensor_attention_backward(cudaStream_t stream, const AttentionShape& shape, const bf16* qkv,
                               const bf16* out, const float* log_sum, const bf16* d_out,
                               float* delta, bf16* dqkv) {
  const std::int64_t count = shape.batch * shape.time * shape.channels() / kVector;
  launch(stream, "attention's gradient",
         {.grid = dim3(blocks_for(count, kDeltaThreads)), .block = dim3(kDeltaThreads)},
         shape.head_dim == 64 ? attention_delta_kernel<64> : attention_delta_kernel<128>, out,
         d_out, delta, static_cast<int>(shape.time), static_cast<int>(shape.heads), count);
  Arguments arguments = common_arguments(shape);
  arguments.qkv = qkv;
  arguments.d_out = d_out;
  arguments.delta = delta;
  arguments.log_sum = const_cast<float*>(log_sum);  // the forward writes it, the backward reads
  arguments.result = dqkv;
  shape.head_dim == 64 ? backward<64>(stream, shape, arguments)
                       : backward<128>(stream, shape, arguments);
}

}  // namespace train_gpt::cuda
