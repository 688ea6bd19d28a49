// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Device functions that concern one thread: arithmetic, memory, atomics. Part of cuda_host.hpp.
/// Has only the functions that kernels use so far.

#include <vector_types.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

// libm declares some of the names itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf

inline float rsqrtf(float x) {
  return 1.0F / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __saturatef(float x) {
  return fminf(fmaxf(x, 0.0F), 1.0F);
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __fmaf_rn(float x, float y, float z) {
  return fmaf(x, y, z);
}
inline float __fdiv_rn(float x, float y) {
  return x / y;
}
inline float __frcp_rn(float x) {
  return 1.0F / x;
}
inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}
inline float __frsqrt_rn(float x) {
  return rsqrtf(x);
}
inline double __dadd_rn(double x, double y) {
  return x + y;
}
inline double __dmul_rn(double x, double y) {
  return x * y;
}
inline double __fma_rn(double x, double y, double z) {
  return fma(x, y, z);
}

template <typename A, typename B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using Common = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<Common>) {
    return static_cast<Common>(fmin(static_cast<Common>(a), static_cast<Common>(b)));
  } else {
    return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(a)
                                                           : static_cast<Common>(b);
  }
}
template <typename A, typename B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using Common = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<Common>) {
    return static_cast<Common>(fmax(static_cast<Common>(a), static_cast<Common>(b)));
  } else {
    return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(b)
                                                           : static_cast<Common>(a);
  }
}

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32);
}

// Loads and stores with cache hints, which are ignored.
#define ACC_STANDIN_LOAD(name)      \
  template <typename T>             \
  inline T name(const T* address) { \
    return *address;                \
  }
#define ACC_STANDIN_STORE(name)           \
  template <typename T>                   \
  inline void name(T* address, T value) { \
    *address = value;                     \
  }
ACC_STANDIN_LOAD(__ldg)
ACC_STANDIN_LOAD(__ldca)
ACC_STANDIN_LOAD(__ldcg)
ACC_STANDIN_LOAD(__ldcs)
ACC_STANDIN_LOAD(__ldlu)
ACC_STANDIN_LOAD(__ldcv)
ACC_STANDIN_STORE(__stcg)
ACC_STANDIN_STORE(__stcs)
ACC_STANDIN_STORE(__stwb)
ACC_STANDIN_STORE(__stwt)
#undef ACC_STANDIN_LOAD
#undef ACC_STANDIN_STORE

inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline void __threadfence_block() {
  __threadfence();
}
inline void __threadfence_system() {
  __threadfence();
}
[[noreturn]] inline void __trap() {
  std::abort();
}

namespace standin {

/// Replaces *address by change(*address); returns the old value.
template <typename T, typename Change>
T atomic_change(T* address, Change&& change) {
  std::atomic_ref<T> cell(*address);
  T old = cell.load();
  while (!cell.compare_exchange_weak(old, change(old))) {
  }
  return old;
}

template <typename T>
concept AtomicNumber = std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
    std::is_same_v<T, unsigned long long> || std::is_same_v<T, float> || std::is_same_v<T, double>;
template <typename T>
concept AtomicInteger = AtomicNumber<T> && std::is_integral_v<T>;

}  // namespace standin

template <standin::AtomicNumber T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return standin::atomic_change(address, [value](T old) { return old + value; });
}
template <standin::AtomicInteger T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return standin::atomic_change(address, [value](T old) { return old - value; });
}
template <standin::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return standin::atomic_change(address, [value](T old) { return old < value ? value : old; });
}
template <standin::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return standin::atomic_change(address, [value](T old) { return old < value ? old : value; });
}
template <standin::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return standin::atomic_change(address, [value](T old) { return old | value; });
}
template <standin::AtomicNumber T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return standin::atomic_change(address, [value](T) { return value; });
}
template <standin::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value);
  return expected;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return standin::atomic_change(address,
                                [limit](unsigned old) { return old >= limit ? 0U : old + 1; });
}
