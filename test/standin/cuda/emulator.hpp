// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <vector>

#define ACC_STANDIN_THREAD_LOCAL extern __thread __attribute__((tls_model("initial-exec")))
/// CUDA's built-in variables, for the thread that runs on this host thread.
ACC_STANDIN_THREAD_LOCAL uint3 threadIdx;
ACC_STANDIN_THREAD_LOCAL uint3 blockIdx;
ACC_STANDIN_THREAD_LOCAL uint3 blockDim;
ACC_STANDIN_THREAD_LOCAL uint3 gridDim;

/// Runs a kernel that was compiled as C++. Each thread of a block is a fiber that runs until it has
/// to wait for others, at a barrier or in a warp operation; blocks run one after the other. Kernels
/// reach this through cuda_host.hpp.
namespace standin {

inline constexpr unsigned kWarpSize = 32;
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;
inline constexpr std::size_t kDefaultSharedBytes = 48 * 1024;

struct GridShape {
  dim3 grid{};
  dim3 block{};
  std::size_t shared_bytes = 0;
};

/// Calls `kernel` once for each thread of the grid, on this host thread. Ends the process with a
/// message if threads wait for something that cannot happen.
void run_grid(const GridShape& shape, const std::function<void()>& kernel);

class Block;

/// Identity of a kernel's thread.
struct Thread {
  unsigned lane = 0;
  unsigned rank = 0;  ///< number in the block
  Block* block = nullptr;
};

/// The thread that runs on this host thread.
ACC_STANDIN_THREAD_LOCAL Thread* current_thread;

/// The block's dynamic shared memory; filled with NaNs when the block starts.
void* dynamic_shared();

/// __syncthreads.
void block_barrier(std::source_location where);

/// Operation of the lanes of a warp, called once all lanes of a mask have arrived. lanes[i]: the
/// argument of lane i; null if the lane is not in the mask or has ended.
using WarpOperation = void (*)(void* const (&lanes)[kWarpSize]);
/// Runs a warp operation. Every lane in `mask` that has not ended must call this with the same mask
/// from the same place. `arguments` may receive the result; they live until the call returns.
void warp_operation(unsigned mask, WarpOperation operation, void* arguments, const char* name,
                    std::source_location where);

}  // namespace standin
