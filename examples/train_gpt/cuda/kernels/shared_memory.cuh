#pragma once

namespace train_gpt::cuda {

#ifdef __CUDACC__
/// The block's shared memory whose size the launch gave.
__device__ inline void* dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
#else  // test/standin's twin, for tests without a GPU
inline void* dynamic_shared_memory() {
  return standin::dynamic_shared();
}
#endif

}  // namespace train_gpt::cuda
