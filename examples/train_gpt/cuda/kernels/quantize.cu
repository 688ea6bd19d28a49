// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector8.cuh"

#include <cuda_fp8.h>

#include <cmath>

namespace train_gpt::cuda {
namespace {

constexpr int kTile = 64;  // rows and columns of a block
constexpr int kThreads = 256;
constexpr float kMostE4m3 = 448.0f;
constexpr float kMostE5m2 = 57344.0f;

/// Eight numbers of one byte, as one access of memory.
__device__ void store_bytes(std::uint8_t* to, const std::uint8_t (&bytes)[kVector]) {
  std::uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    words[i / 4] |= static_cast<std::uint32_t>(bytes[i]) << (8 * (i % 4));
  }
  *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
}

// One block per tile: writes the tile and, through shared memory, its transpose. Numbers that are
// too large for the scale become the largest number of the type.
template <__nv_fp8_interpretation_t Type>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const __nv_bfloat16* x, std::int64_t rows, std::int64_t cols,
                    const float* scale, std::uint8_t* plain, std::uint8_t* transposed,
                    float* amax) {
  // Rows of shared memory are longer than a tile, so that the bytes of a column are in different
  // banks.
  __shared__ std::uint8_t tile[kTile][kTile + 4];
  __shared__ float maxima[kMostWarps];
  constexpr int kVectors = kTile / kVector;  // in a row of the tile
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const float factor = *scale;
  float highest = 0.0f;
  for (int index = static_cast<int>(threadIdx.x); index < kTile * kVectors; index += kThreads) {
    const int row = index / kVectors;
    const int col = index % kVectors * kVector;
    const bool inside = first_row + row < rows && first_col + col < cols;
    const std::int64_t at = (first_row + row) * cols + first_col + col;
    const Vector8 values = inside ? load8(x + at) : Vector8{};
    std::uint8_t bytes[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      highest = fmaxf(highest, fabsf(values[i]));
      bytes[i] = __nv_cvt_float_to_fp8(values[i] * factor, __NV_SATFINITE, Type);
      tile[row][col + i] = bytes[i];
    }
    if (inside && plain != nullptr) {
      store_bytes(plain + at, bytes);
    }
  }
  highest = block_maximum(highest, maxima);  // its barrier: the tile is complete
  if (threadIdx.x == 0) {
    // Numbers that are not negative have the order of their bits.
    atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(highest));
  }
  if (transposed == nullptr) {
    return;
  }
  for (int index = static_cast<int>(threadIdx.x); index < kTile * kVectors; index += kThreads) {
    const int col = index % kTile;
    const int row = index / kTile * kVector;
    if (first_row + row < rows && first_col + col < cols) {
      std::uint8_t bytes[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        bytes[i] = tile[row + i][col];
      }
      store_bytes(transposed + (first_col + col) * rows + first_row + row, bytes);
    }
  }
}

__global__ void reset_scales_kernel(Fp8Scales scales) {
  const std::int64_t tensor = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (tensor < scales.count) {
    scales.scale[tensor] = scales.inverse[tensor * kFp8ScaleStride] = 1.0f;
    scales.amax[tensor] = 0.0f;
    for (std::int64_t i = 0; i < scales.length; ++i) {
      scales.history[tensor * scales.length + i] = 0.0f;
    }
  }
}

__global__ void update_scales_kernel(Fp8Scales scales, std::int64_t slot) {
  const std::int64_t tensor = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (tensor >= scales.count) {
    return;
  }
  float* history = scales.history + tensor * scales.length;
  float highest = scales.amax[tensor];
  scales.amax[tensor] = 0.0f;
  history[slot] = highest;
  if (scales.use_max) {
    for (std::int64_t i = 0; i < scales.length; ++i) {
      highest = fmaxf(highest, history[i]);
    }
  }
  const float most = tensor % scales.period == scales.e5m2_at ? kMostE5m2 : kMostE4m3;
  const float scale = ldexpf(most / highest, -scales.margin);
  // A tensor of zeros, or one with an infinity, says nothing about the next one.
  if (highest > 0.0f && scale > 0.0f && scale < INFINITY) {
    scales.scale[tensor] = scale;
    scales.inverse[tensor * kFp8ScaleStride] = 1.0f / scale;
  }
}

}  // namespace

void fp8_quantize(cudaStream_t stream, const __nv_bfloat16* x, std::int64_t rows, std::int64_t cols,
                  bool e5m2, const float* scale, std::uint8_t* plain, std::uint8_t* transposed,
                  float* amax) {
  launch(stream, "rounding to fp8",
         {.grid = dim3(blocks_for(cols, kTile), blocks_for(rows, kTile)), .block = dim3(kThreads)},
         e5m2 ? quantize_kernel<__NV_E5M2> : quantize_kernel<__NV_E4M3>, x, rows, cols, scale,
         plain, transposed, amax);
}

void fp8_reset_scales(cudaStream_t stream, const Fp8Scales& scales) {
  launch(stream, "fp8 scales",
         {.grid = dim3(blocks_for(scales.count, kThreads)), .block = dim3(kThreads)},
         reset_scales_kernel, scales);
}

void fp8_update_scales(cudaStream_t stream, const Fp8Scales& scales, std::int64_t slot) {
  launch(stream, "fp8 scales",
         {.grid = dim3(blocks_for(scales.count, kThreads)), .block = dim3(kThreads)},
         update_scales_kernel, scales, slot);
}

}  // namespace train_gpt::cuda
