// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// Kernels for the emulator's tests. Pointers are to device memory.
namespace standin_test {

struct Launch {
  unsigned blocks = 1;
  unsigned threads = 32;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

/// out[i] = i for thread i of the grid, with three dimensions of blocks and threads.
cudaError_t number_threads(dim3 grid, dim3 block, int* out);
/// values[i] = values[i] * factor + 1
cudaError_t scale_add(const Launch& launch, float* values, unsigned numel, float factor);
/// out[b] = sum of the block's values, over a tree with barriers in static shared memory.
cudaError_t sum_with_barriers(const Launch& launch, const int* values, int* out);
/// The same without its barriers.
cudaError_t sum_without_barriers(const Launch& launch, const int* values, int* out);
/// out[b] = sum of the block's values, by shuffles and then one warp; dynamic shared memory.
cudaError_t sum_with_shuffles(const Launch& launch, const double* values, double* out);
/// out[lane][0..6]: xor 1, down 1, up 1, idx 3 within parts of 8, ballot of odd lanes, any, all.
cudaError_t warp_functions(int* out);
/// counters[0..3]: threads by atomicAdd on int, float, double; the largest thread number.
cudaError_t count_threads(const Launch& launch, int* as_int, float* as_float, double* as_double,
                          int* largest);
/// *sum += nbytes, over that much dynamic shared memory, which must be allowed first.
cudaError_t fill_shared(unsigned nbytes, int* sum);
cudaError_t allow_shared(int nbytes);

/// Kernels with errors for which the emulator ends the process.
cudaError_t diverge_at_barrier();
cudaError_t diverge_in_warp();
cudaError_t wait_for_each_other();
cudaError_t overrun_shared();
/// Copy one vector, which must be aligned to its size: 16, 16 and 4 bytes.
cudaError_t copy_float4(const void* from, void* to);
cudaError_t copy_uint4(const void* from, void* to);
cudaError_t copy_bfloat162(const void* from, void* to);
/// *to = array[index] for an array of 4 elements in a thread's own memory.
cudaError_t read_own_array(int index, int* to);

}  // namespace standin_test
