#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

/// How kernels walk over arrays: a block takes a tile at a time, a thread of it four neighbouring
/// elements at a time, so that what a warp reads or writes at once is contiguous.
namespace acc::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kQuadsOfTile = 4;  ///< per thread
inline constexpr std::size_t kTile = std::size_t{4} * kQuadsOfTile * kThreads;
/// Enough for every multiprocessor to be full, several times over, so that none idles at the end.
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

/// This thread's quad number `index` of a tile, from the tile's begin.
__device__ __forceinline__ std::size_t quad_offset(unsigned index) {
  return std::size_t{4} * (index * kThreads + threadIdx.x);
}

template <typename T>
inline bool quads_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Quad<T>) == 0;
}

/// Elements that pass once need not push others out of the caches.
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

/// The 16-bit formats by their bits: CUDA's own types have constructors, which a Quad cannot.
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
