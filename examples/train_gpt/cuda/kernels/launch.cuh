// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cuda_check.hpp"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace train_gpt::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_nbytes = 0;
};

/// Queues `kernel` on `stream`. An empty grid queues nothing. name: operation, for messages. Throws
/// Error(device).
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const char* name, const LaunchShape& shape,
            void (*kernel)(Parameters...), Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0) {
    return;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_nbytes;
  config.stream = stream;
  // More dynamic shared memory than 48 KiB per block must be requested (CUDA programming guide).
  constexpr std::size_t kAllowedUnasked = 48 * 1024;
  if (shape.shared_nbytes > kAllowedUnasked) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_nbytes)),
          name);
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

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

inline unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace train_gpt::cuda
