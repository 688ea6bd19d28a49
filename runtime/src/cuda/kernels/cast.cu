// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/tiles.cuh"

namespace acc::cuda {
namespace {

// The two loops are separate so that all loads of a tile are in flight before the first result is
// needed.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    cast_tiles(const From* __restrict__ from, To* __restrict__ to, std::size_t numel,
               bool aligned) {
  for (std::size_t begin = blockIdx.x * kTile; begin < numel; begin += gridDim.x * kTile) {
    if (aligned && begin + kTile <= numel) {
      Quad<From> loaded[kQuadsOfTile];
#pragma unroll
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        loaded[i] = load_quad(from + begin + quad_offset(i));
      }
#pragma unroll
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        Quad<To> result;
        for (int j = 0; j < 4; ++j) {
          result.values[j] = narrow<To>(widen(loaded[i].values[j]));
        }
        store_quad(to + begin + quad_offset(i), result);
      }
    } else {
      const std::size_t end = begin + kTile < numel ? begin + kTile : numel;
      for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads) {
        to[i] = narrow<To>(widen(from[i]));
      }
    }
  }
}

// `to` may be `from`: each element is read and then written by the same thread.
template <typename From>
__global__ void __launch_bounds__(kThreads)
    add_scaled_tiles(const From* from, float* to, std::size_t numel, float scale, bool accumulate,
                     bool aligned) {
  for (std::size_t begin = blockIdx.x * kTile; begin < numel; begin += gridDim.x * kTile) {
    if (aligned && begin + kTile <= numel) {
      Quad<From> loaded[kQuadsOfTile];
      Quad<float> sums[kQuadsOfTile] = {};
#pragma unroll
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        loaded[i] = load_quad(from + begin + quad_offset(i));
        if (accumulate) {
          sums[i] = load_quad(to + begin + quad_offset(i));
        }
      }
#pragma unroll
      for (unsigned i = 0; i < kQuadsOfTile; ++i) {
        for (int j = 0; j < 4; ++j) {
          const float scaled = scale * widen(loaded[i].values[j]);
          sums[i].values[j] = accumulate ? sums[i].values[j] + scaled : scaled;
        }
        store_quad(to + begin + quad_offset(i), sums[i]);
      }
    } else {
      const std::size_t end = begin + kTile < numel ? begin + kTile : numel;
      for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads) {
        const float scaled = scale * widen(from[i]);
        to[i] = accumulate ? to[i] + scaled : scaled;
      }
    }
  }
}

cudaLaunchConfig_t grid_for(std::size_t numel, const Launch& launch) {
  return tile_grid((numel + kTile - 1) / kTile, launch.multiprocessors, launch.stream);
}

template <typename From, typename To>
cudaError_t cast_elements(const void* from, void* to, std::size_t numel, const Launch& launch) {
  const auto* const source = static_cast<const From*>(from);
  auto* const target = static_cast<To*>(to);
  const cudaLaunchConfig_t config = grid_for(numel, launch);
  return cudaLaunchKernelEx(&config, cast_tiles<From, To>, source, target, numel,
                            quads_aligned(source) && quads_aligned(target));
}

template <typename From>
cudaError_t cast_from(const void* from, void* to, DType to_dtype, std::size_t numel,
                      const Launch& launch) {
  switch (to_dtype) {
    case DType::float32: return cast_elements<From, float>(from, to, numel, launch);
    case DType::bfloat16: return cast_elements<From, Bf16>(from, to, numel, launch);
    case DType::float16: return cast_elements<From, F16>(from, to, numel, launch);
    default: break;
  }
  return cudaErrorInvalidValue;
}

template <typename From>
cudaError_t add_scaled_elements(const void* from, float* to, std::size_t numel, float scale,
                                bool accumulate, const Launch& launch) {
  const auto* const source = static_cast<const From*>(from);
  const cudaLaunchConfig_t config = grid_for(numel, launch);
  return cudaLaunchKernelEx(&config, add_scaled_tiles<From>, source, to, numel, scale, accumulate,
                            quads_aligned(source) && quads_aligned(to));
}

}  // namespace

cudaError_t cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
                 const Launch& launch) {
  if (numel == 0) {
    return cudaSuccess;
  }
  switch (from_dtype) {
    case DType::float32: return cast_from<float>(from, to, to_dtype, numel, launch);
    case DType::bfloat16: return cast_from<Bf16>(from, to, to_dtype, numel, launch);
    case DType::float16: return cast_from<F16>(from, to, to_dtype, numel, launch);
    default: break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel,
                       float scale, bool accumulate, const Launch& launch) {
  if (numel == 0) {
    return cudaSuccess;
  }
  switch (from_dtype) {
    case DType::float32:
      return add_scaled_elements<float>(from, to, numel, scale, accumulate, launch);
    case DType::bfloat16:
      return add_scaled_elements<Bf16>(from, to, numel, scale, accumulate, launch);
    case DType::float16:
      return add_scaled_elements<F16>(from, to, numel, scale, accumulate, launch);
    default: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace acc::cuda
