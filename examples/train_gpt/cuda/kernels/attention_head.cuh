// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels/attention_tile.cuh"
#include "cuda/kernels/launch.cuh"
#include "model/attention.hpp"

#include <cmath>
#include <cstdint>

/// Code that the tensor core kernels of causal attention share. They implement FlashAttention-2
/// (arXiv 2307.08691). The backward is split into two kernels, so that one block sums each gradient
/// in a fixed order. A block processes some rows (blockIdx.y) of one head (x) of one sequence (z).
/// Blocks that run at the same time then share the rows of few sequences, which fit in the L2
/// cache.
namespace train_gpt::cuda {

constexpr float kLog2E = 1.4426950408889634f;

constexpr int kQueryTiles = 2;  // tiles of 16 rows in a warp's result
constexpr int kQueries = kWarps * 16 * kQueryTiles;
/// Number of keys per step of the loop; limited by the number of registers.
template <int D>
constexpr int kKeys = D == 64 ? 64 : 32;

/// T: __nv_bfloat16 or __half
template <class T>
struct AttentionArguments {
  const T* qkv;        // (B, T, 3, H, D)
  const T* d_out;      // (B, T, H, D)
  const float* delta;  // (B, H, T): out . d_out
  float* log_sum;      // (B, H, T)
  T* result;           // out or dqkv
  int time;
  int heads;
  float scale;
};

/// Rows of this block's head in a tensor (B, T, parts, H, D).
template <int D, class Element>
struct HeadRows {
  Element* first;
  std::int64_t stride;

  template <class T>
  __device__ HeadRows(Element* tensor, const AttentionArguments<T>& arguments, int parts, int part)
      : first(tensor), stride(static_cast<std::int64_t>(parts) * arguments.heads * D) {
    const int head = static_cast<int>(blockIdx.x);
    const std::int64_t sequence = blockIdx.z;
    first += sequence * arguments.time * stride + (part * arguments.heads + head) * D;
  }
  __device__ Element* row(int index) const { return first + index * stride; }
};

template <class T>
__device__ std::int64_t statistics_offset(const AttentionArguments<T>& arguments) {
  return (static_cast<std::int64_t>(blockIdx.z) * arguments.heads + blockIdx.x) * arguments.time;
}

__device__ inline int warp_index() {
  return static_cast<int>(threadIdx.x) / 32;
}
__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// Masks (sets to -infinity) the scores for which hidden(row, column) is true.
template <int MT, int NT, class Hidden>
__device__ void hide(float (&scores)[MT][NT][4], Hidden hidden) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * m + 8 * (i / 2) + lane / 4;
        const int column = 8 * n + 2 * (lane % 4) + i % 2;
        scores[m][n][i] = hidden(row, column) ? -INFINITY : scores[m][n][i];
      }
    }
  }
}

/// Masks keys after the query. Rows are queries starting at `query`, columns keys starting at
/// `key`.
template <int MT, int NT>
__device__ void hide_future(float (&scores)[MT][NT][4], int query, int key) {
  hide(scores, [=](int row, int column) { return key + column > query + row; });
}

/// Does the same for transposed scores: rows are keys, columns queries.
template <int MT, int NT>
__device__ void hide_past(float (&scores)[MT][NT][4], int key, int query) {
  hide(scores, [=](int row, int column) { return key + row > query + column; });
}

/// rows: rows of the result per block. shared_rows: rows of D numbers of 2 bytes in shared
/// memory. more_nbytes: additional shared memory.
template <int D>
LaunchShape launch_shape(const AttentionShape& shape, int rows, int shared_rows,
                         std::size_t more_nbytes = 0) {
  constexpr std::size_t kElement = 2;
  return {.grid = dim3(static_cast<unsigned>(shape.heads), blocks_for(shape.time, rows),
                       static_cast<unsigned>(shape.batch)),
          .block = dim3(kThreads),
          .shared_nbytes = static_cast<std::size_t>(shared_rows) * D * kElement + more_nbytes};
}

template <class T>
AttentionArguments<T> common_arguments(const AttentionShape& shape) {
  AttentionArguments<T> arguments{};
  arguments.time = static_cast<int>(shape.time);
  arguments.heads = static_cast<int>(shape.heads);
  arguments.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return arguments;
}

}  // namespace train_gpt::cuda
