// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

/// Iteration of kernels over arrays. A block takes one tile of 4096 elements at a time. Within a
/// tile, a thread takes four adjacent elements (a quad) at a time and the threads of a warp take
/// adjacent quads, so the accesses of a warp are contiguous. A tile at the end, or of unaligned
/// arrays, is processed element by element.
namespace acc::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kQuadsOfTile = 4;  ///< quads per thread in a tile
inline constexpr std::size_t kTile = std::size_t{4} * kQuadsOfTile * kThreads;
/// Limit of blocks per multiprocessor: several times what it can run at once, so that the last
/// blocks are distributed evenly. Blocks loop over the remaining tiles.
inline constexpr std::size_t kBlocksPerMultiprocessor = 32;

inline cudaLaunchConfig_t tile_grid(std::size_t tiles, int multiprocessors, cudaStream_t stream) {
  const std::size_t most = kBlocksPerMultiprocessor * static_cast<std::size_t>(multiprocessors);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, most)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return config;
}

template <typename T>
struct Quad {
  T values[4];
};

/// Offset of this thread's quad number `index` from the start of the tile, in elements.
__device__ __forceinline__ std::size_t quad_offset(unsigned index) {
  return std::size_t{4} * (index * kThreads + threadIdx.x);
}

/// True if quads of this array can be loaded as single words.
template <typename T>
inline bool quads_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Quad<T>) == 0;
}

/// Loads a quad with the streaming cache hint: each element is used once and should not displace
/// other data in the caches. `from` must be aligned to the quad.
template <typename T>
__device__ __forceinline__ Quad<T> load_quad(const T* from) {
  Quad<T> quad;
#ifdef __CUDACC__
  if constexpr (sizeof(quad) == sizeof(uint4)) {
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
    memcpy(&quad, &words, sizeof(quad));
  } else {
    const uint2 words = __ldcs(reinterpret_cast<const uint2*>(from));
    memcpy(&quad, &words, sizeof(quad));
  }
#else
  memcpy(&quad, from, sizeof(quad));
#endif
  return quad;
}

/// Stores a quad with the same hint.
template <typename T>
__device__ __forceinline__ void store_quad(T* to, const Quad<T>& quad) {
#ifdef __CUDACC__
  if constexpr (sizeof(quad) == sizeof(uint4)) {
    uint4 words;
    memcpy(&words, &quad, sizeof(quad));
    __stcs(reinterpret_cast<uint4*>(to), words);
  } else {
    uint2 words;
    memcpy(&words, &quad, sizeof(quad));
    __stcs(reinterpret_cast<uint2*>(to), words);
  }
#else
  memcpy(to, &quad, sizeof(quad));
#endif
}

/// The 16-bit formats as plain bits. CUDA's types have constructors, which members of Quad must not
/// have.
struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

__device__ __forceinline__ float widen(float value) {
  return value;
}
__device__ __forceinline__ float widen(Bf16 value) {
  return __bfloat162float(__ushort_as_bfloat16(value.bits));
}
__device__ __forceinline__ float widen(F16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

template <typename To>
__device__ __forceinline__ To narrow(float value) {
  if constexpr (sizeof(To) == sizeof(float)) {
    return value;
  } else if constexpr (std::is_same_v<To, Bf16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
  } else {
    return {__half_as_ushort(__float2half_rn(value))};
  }
}

}  // namespace acc::cuda
