// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/vector8.cuh"

#include <cstdint>

/// Blocks of rows in shared memory, and the matrix products that one warp computes with them. In a
/// product, a warp holds MT tiles of 16 rows by NT tiles of 8 columns of the result.
namespace train_gpt::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

/// Rows of D numbers of T (bf16 or fp16) in shared memory. The 16-byte chunks of a row are permuted
/// (XOR with the row number), so that the chunks of one column in eight consecutive rows are in
/// different banks.
template <class T, int D>
struct Tile {
  T* data;

  __device__ T* chunk(int row, int column) const {
    return data + row * D + ((column ^ (row & 7)) << 3);
  }
};

/// Starts an asynchronous copy of rows [0, Rows) from global memory. Rows from `valid` on become
/// zero.
template <int Rows, class T, int D>
__device__ void load_rows(Tile<T, D> tile, const T* first, std::int64_t stride, int valid) {
  constexpr int kChunks = D / 8;
  static_assert(Rows * kChunks % kThreads == 0);
#pragma unroll
  for (int i = 0; i < Rows * kChunks / kThreads; ++i) {
    const int index = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = index / kChunks;
    const int column = index % kChunks;
    const bool inside = row < valid;
    copy_async(tile.chunk(row, column), first + (inside ? row * stride + column * 8 : 0), inside);
  }
}

/// Writes the rows that this warp has stored in its part of the tile to global memory.
template <int Rows, class T, int D>
__device__ void store_rows(Tile<T, D> tile, int first_row, T* first, std::int64_t stride,
                           int valid) {
  constexpr int kChunks = D / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Rows * kChunks / 32; ++i) {
    const int index = i * 32 + lane;
    const int row = first_row + index / kChunks;
    const int column = index % kChunks;
    if (row < valid) {
      *reinterpret_cast<uint4*>(first + row * stride + column * 8) =
          *reinterpret_cast<const uint4*>(tile.chunk(row, column));
    }
  }
}

/// Stores sums * factor in the rows of a tile, rounded to T.
template <int MT, class T, int D>
__device__ void put_rows(Tile<T, D> tile, int first_row, const float (&sums)[MT][D / 8][4],
                         const float (&factors)[MT][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * m + 8 * half + lane / 4;
        *reinterpret_cast<std::uint32_t*>(tile.chunk(row, n) + 2 * (lane % 4)) = pack<T>(
            sums[m][n][2 * half] * factors[m][half], sums[m][n][2 * half + 1] * factors[m][half]);
      }
    }
  }
}

/// sums += (rows of a starting at a_row) (rows of b starting at b_row)^T
template <int MT, int NT, class T, int D>
__device__ void multiply_rows(float (&sums)[MT][NT][4], Tile<T, D> a, int a_row, Tile<T, D> b,
                              int b_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    std::uint32_t left[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      load_matrices(left[m], a.chunk(a_row + 16 * m + lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < NT / 2; ++n) {
      std::uint32_t right[4];
      load_matrices(right,
                    b.chunk(b_row + 16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply_add<T>(sums[m][2 * n], left[m], right[0], right[1]);
        multiply_add<T>(sums[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// sums += weights (16 MT x 8 NT) (rows of b starting at b_row). Weights are rounded to T.
template <int MT, int NT, class T, int D>
__device__ void multiply_columns(float (&sums)[MT][D / 8][4], const float (&weights)[MT][NT][4],
                                 Tile<T, D> b, int b_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < NT / 2; ++k) {
    std::uint32_t left[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int part = 0; part < 4;
           ++part) {  // rows 0-7 and 8-15 of the first 8 columns, then of the next 8
        const float(&pair)[4] = weights[m][2 * k + part / 2];
        left[m][part] = pack<T>(pair[2 * (part % 2)], pair[2 * (part % 2) + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t right[4];
      load_matrices_transposed(right, b.chunk(b_row + 16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply_add<T>(sums[m][2 * n], left[m], right[0], right[1]);
        multiply_add<T>(sums[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

template <int MT, int NT>
__device__ void clear(float (&sums)[MT][NT][4]) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[m][n][i] = 0.0f;
      }
    }
  }
}

}  // namespace train_gpt::cuda
