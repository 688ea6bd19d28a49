#pragma once

namespace train_gpt::cuda {

#ifdef __CUDACC__
/// Returns the block's dynamic shared memory, whose size is set at the launch.
__device__ inline void* dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
#else  // stand-in of test/standin, for tests without a GPU
inline void* dynamic_shared_memory() {
  return standin::dynamic_shared();
}
#endif

}  // namespace train_gpt::cuda
