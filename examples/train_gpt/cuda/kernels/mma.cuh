// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

/// Tensor core instructions of one warp for bf16 or fp16 with fp32 sums, and asynchronous copies to
/// shared memory. Lane l holds row l / 4 and columns 2 (l % 4) and 2 (l % 4) + 1 of an 8x8 matrix
/// (PTX ISA, mma.m16n8k16).
namespace train_gpt::cuda {

#ifdef __CUDACC__

/// Loads four 8x8 matrices from shared memory. Lane l passes the address of row l % 8 (16 bytes) of
/// matrix l / 8.
__device__ inline void load_matrices(std::uint32_t (&matrices)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address)
               : "memory");
}

/// Does the same and transposes each matrix.
__device__ inline void load_matrices_transposed(std::uint32_t (&matrices)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address)
               : "memory");
}

/// sums (16 x 8) += a (16 x 16) b (16 x 8), elements of T. a: rows 0-7 and 8-15 of columns 0-7,
/// then those of columns 8-15.
template <class T>
__device__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Starts copying 16 bytes from global to shared memory. Writes zeros if not `valid`.
__device__ inline void copy_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

/// Makes the copies that this thread has started one group.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `Pending` of this thread's groups are still in progress.
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Computes 2^x with an accuracy of about 22 bits.
__device__ inline float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#else  // stand-ins of test/standin, for tests without a GPU

inline void load_matrices(std::uint32_t (&matrices)[4], const void* row) {
  standin::ldmatrix(matrices, row);
}

inline void load_matrices_transposed(std::uint32_t (&matrices)[4], const void* row) {
  standin::ldmatrix_trans(matrices, row);
}

template <class T>
void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  const std::uint32_t b[2] = {b0, b1};
  standin::mma_m16n8k16<T>(sums, a, b, sums);
}

inline void copy_async(void* shared, const void* global, bool valid) {
  standin::cp_async_16(shared, global, valid ? 16 : 0);
}

inline void commit_copies() {
  standin::cp_async_commit();
}

template <int Pending>
inline void wait_for_copies() {
  standin::cp_async_wait(Pending);
}

inline float fast_exp2(float x) {
  return std::exp2(x);
}

#endif

}  // namespace train_gpt::cuda
