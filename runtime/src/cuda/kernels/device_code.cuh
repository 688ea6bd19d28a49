#pragma once

/// What a kernel source needs beside CUDA's own headers. The same source is also compiled as C++
/// and run on host memory by tests; the few lines that differ are here.
namespace acc::cuda {

/// The block's dynamic shared memory, of the size that the launch named, aligned to 128 bytes.
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
