// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Definitions for kernel sources that differ between CUDA and the stand-in of the tests, which
/// compiles the same sources as C++ and runs them on host memory.
namespace acc::cuda {

/// The block's dynamic shared memory, with the size given at the launch; aligned to 128 bytes.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) unsigned char acc_dynamic_shared_storage[];
  return reinterpret_cast<T*>(acc_dynamic_shared_storage);
#else
  return static_cast<T*>(standin::dynamic_shared());
#endif
}

}  // namespace acc::cuda
