// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/device_code.cuh"
#include "kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace standin_test {
namespace {

constexpr unsigned kAll = 0xffffffffU;
constexpr unsigned kMaxThreads = 256;

__device__ unsigned global_thread() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}

__global__ void number_threads_kernel(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  out[i] = static_cast<int>(i);
}

__global__ void __launch_bounds__(kMaxThreads)
    scale_add_kernel(float* values, unsigned numel, float factor) {
  for (unsigned i = global_thread(); i < numel; i += gridDim.x * blockDim.x) {
    values[i] = fmaf(values[i], factor, 1.0F);
  }
}

template <bool kBarriers>
__global__ void sum_kernel(const int* values, int* out) {
  __shared__ int partial[kMaxThreads];
  partial[threadIdx.x] = values[global_thread()];
  if (kBarriers) {
    __syncthreads();
  }
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (kBarriers) {
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) {
    out[blockIdx.x] = partial[0];
  }
}

__device__ double warp_sum(double value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAll, value, offset);
  }
  return value;
}

__global__ void sum_with_shuffles_kernel(const double* values, double* out) {
  auto* of_warps = acc::cuda::dynamic_shared<double>();
  const double sum = warp_sum(values[global_thread()]);
  if (threadIdx.x % warpSize == 0) {
    of_warps[threadIdx.x / warpSize] = sum;
  }
  __syncthreads();
  if (threadIdx.x < warpSize) {
    const bool is_warp = threadIdx.x < blockDim.x / warpSize;
    const double total = warp_sum(is_warp ? of_warps[threadIdx.x] : 0.0);
    if (threadIdx.x == 0) {
      out[blockIdx.x] = total;
    }
  }
}

__global__ void warp_functions_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* mine = out + lane * 7;
  mine[0] = __shfl_xor_sync(kAll, lane, 1);
  mine[1] = __shfl_down_sync(kAll, lane, 1);
  mine[2] = __shfl_up_sync(kAll, lane, 1);
  mine[3] = __shfl_sync(kAll, lane, 3, 8);
  mine[4] = static_cast<int>(__ballot_sync(kAll, lane % 2));
  mine[5] = __any_sync(kAll, lane == 31);
  mine[6] = __all_sync(kAll, lane < 31);
}

__global__ void count_threads_kernel(int* as_int, float* as_float, double* as_double,
                                     int* largest) {
  atomicAdd(as_int, 1);
  atomicAdd(as_float, 1.0F);
  atomicAdd(as_double, 1.0);
  atomicMax(largest, static_cast<int>(global_thread()));
}

__global__ void fill_shared_kernel(unsigned nbytes, int* sum) {
  auto* bytes = acc::cuda::dynamic_shared<unsigned char>();
  for (unsigned i = threadIdx.x; i < nbytes; i += blockDim.x) {
    bytes[i] = 1;
  }
  __syncthreads();
  int mine = 0;
  for (unsigned i = threadIdx.x; i < nbytes; i += blockDim.x) {
    mine += bytes[i];
  }
  const int of_warp = __reduce_add_sync(kAll, mine);
  if (threadIdx.x % warpSize == 0) {
    atomicAdd(sum, of_warp);
  }
}

__global__ void diverge_at_barrier_kernel() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void diverge_in_warp_kernel() {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    __shfl_xor_sync(kAll, 1, 1);
  }
}

__global__ void wait_for_each_other_kernel() {
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    __shfl_sync(kAll, 1, 0);
  }
}

__global__ void overrun_shared_kernel() {
  auto* bytes = acc::cuda::dynamic_shared<unsigned char>();
  bytes[blockDim.x + threadIdx.x] = 0;
}

template <typename Vector>
__global__ void copy_vector_kernel(const Vector* from, Vector* to) {
  *to = *from;
}

__global__ void read_own_array_kernel(int index, int* to) {
  int values[4];
  for (int i = 0; i < 4; ++i) {
    values[i] = i + index;
  }
  *to = values[index];
}

template <typename... Expected, typename... Actual>
cudaError_t start(const Launch& launch, void (*kernel)(Expected...), Actual... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t number_threads(dim3 grid, dim3 block, int* out) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  return cudaLaunchKernelEx(&config, number_threads_kernel, out);
}
cudaError_t scale_add(const Launch& launch, float* values, unsigned numel, float factor) {
  return start(launch, scale_add_kernel, values, numel, factor);
}
cudaError_t sum_with_barriers(const Launch& launch, const int* values, int* out) {
  return start(launch, sum_kernel<true>, values, out);
}
cudaError_t sum_without_barriers(const Launch& launch, const int* values, int* out) {
  return start(launch, sum_kernel<false>, values, out);
}
cudaError_t sum_with_shuffles(const Launch& launch, const double* values, double* out) {
  return start(launch, sum_with_shuffles_kernel, values, out);
}
cudaError_t warp_functions(int* out) {
  return start({}, warp_functions_kernel, out);
}
cudaError_t count_threads(const Launch& launch, int* as_int, float* as_float, double* as_double,
                          int* largest) {
  return start(launch, count_threads_kernel, as_int, as_float, as_double, largest);
}
cudaError_t allow_shared(int nbytes) {
  return cudaFuncSetAttribute(fill_shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              nbytes);
}
cudaError_t fill_shared(unsigned nbytes, int* sum) {
  return start({.threads = 64, .shared_bytes = nbytes}, fill_shared_kernel, nbytes, sum);
}
cudaError_t diverge_at_barrier() {
  return start({}, diverge_at_barrier_kernel);
}
cudaError_t diverge_in_warp() {
  return start({}, diverge_in_warp_kernel);
}
cudaError_t wait_for_each_other() {
  return start({}, wait_for_each_other_kernel);
}
cudaError_t overrun_shared() {
  return start({.threads = 32, .shared_bytes = 32}, overrun_shared_kernel);
}
template <typename Vector>
cudaError_t copy_vector(const void* from, void* to) {
  return start({.threads = 1}, copy_vector_kernel<Vector>, static_cast<const Vector*>(from),
               static_cast<Vector*>(to));
}
cudaError_t copy_float4(const void* from, void* to) {
  return copy_vector<float4>(from, to);
}
cudaError_t copy_uint4(const void* from, void* to) {
  return copy_vector<uint4>(from, to);
}
cudaError_t copy_bfloat162(const void* from, void* to) {
  return copy_vector<__nv_bfloat162>(from, to);
}
cudaError_t read_own_array(int index, int* to) {
  return start({.threads = 1}, read_own_array_kernel, index, to);
}

}  // namespace standin_test
