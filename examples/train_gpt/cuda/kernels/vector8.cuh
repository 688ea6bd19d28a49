// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// Loads and stores of eight consecutive elements, converted to fp32 for computation. Addresses
/// must be aligned to 16 bytes.
namespace train_gpt::cuda {

constexpr int kVector = 8;

struct Vector8 {
  float values[kVector];

  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

__device__ inline Vector8 load8(const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from);
  const float4 high = *reinterpret_cast<const float4*>(from + 4);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ inline Vector8 load8(const __nv_bfloat16* from) {
  const uint4 packed = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  Vector8 result{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // a bf16 is the upper half of an fp32
    result[2 * i] = __uint_as_float(words[i] << 16);
    result[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return result;
}

__device__ inline Vector8 load8(const __half* from) {
  const uint4 packed = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  Vector8 result{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    result[2 * i] = pair.x;
    result[2 * i + 1] = pair.y;
  }
  return result;
}

/// Returns two numbers rounded to T, the first one in the low half.
template <class T>
__device__ std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline void store8(float* to, const Vector8& values) {
  *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
  *reinterpret_cast<float4*>(to + 4) = make_float4(values[4], values[5], values[6], values[7]);
}

/// T: __nv_bfloat16 or __half
template <class T>
__device__ void store8(T* to, const Vector8& values) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = pack<T>(values[2 * i], values[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}
__device__ inline void store(float* to, float value) {
  *to = value;
}
__device__ inline void store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16_rn(value);
}
__device__ inline void store(__half* to, float value) {
  *to = __float2half_rn(value);
}

}  // namespace train_gpt::cuda
