#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <vector>

#define ACC_STANDIN_THREAD_LOCAL extern __thread __attribute__((tls_model("initial-exec")))
/// CUDA's variables, of the thread that is running on this host thread.
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
/// sentence when threads wait for something that cannot happen.
void run_grid(const GridShape& shape, const std::function<void()>& kernel);

class Block;

/// What a kernel's thread sees of itself.
struct Thread {
  unsigned lane = 0;
  unsigned rank = 0;  ///< in the block
  Block* block = nullptr;
};

/// The one that is running on this host thread.
ACC_STANDIN_THREAD_LOCAL Thread* current_thread;

/// The block's dynamic shared memory; holds NaNs when the block starts.
void* dynamic_shared();

/// __syncthreads.
void block_barrier(std::source_location where);

/// What the lanes of a warp do together, once all lanes of a mask have come.
/// lanes[i]: what lane i brought; null where it is not in the mask or has ended.
using WarpOperation = void (*)(void* const (&lanes)[kWarpSize]);
/// Every lane in `mask` that still runs must call this with the same mask from the same place.
/// `arguments` may hold the result: they live until the call returns.
void warp_operation(unsigned mask, WarpOperation operation, void* arguments, const char* name,
                    std::source_location where);

/// cp.async: the copy happens as late as it may, and until then its target holds NaNs.
void async_copy(void* to_shared, const void* from, std::size_t nbytes, std::size_t source_nbytes);
void async_copy_commit();
/// Blocks until at most `pending` committed groups of this thread are under way.
void async_copy_wait(std::size_t pending);

}  // namespace standin
