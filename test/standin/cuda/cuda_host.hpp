// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Included before a .cu file that is compiled as C++ (acc_add_standin_cuda): CUDA's own headers,
/// then what nvcc would add to them, for a kernel that runs under the emulator on host memory.

#ifdef __CUDACC__
#error "cuda_host.hpp is for compilers other than nvcc"
#endif

#include "standin/cuda/emulator.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)

inline constexpr int warpSize = 32;

#include "standin/cuda/cuda_host_functions.hpp"
#include "standin/cuda/cuda_host_warp.hpp"

namespace standin {

/// Queues `body`, which runs the whole grid, like a launch of `kernel` in CUDA.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> body);

}  // namespace standin

template <typename... Expected, typename... Actual>
cudaError_t standin_launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Expected...),
                                  Actual&&... arguments) {
  std::tuple<std::remove_cv_t<Expected>...> copies(std::forward<Actual>(arguments)...);
  const standin::GridShape shape{config->gridDim, config->blockDim, config->dynamicSmemBytes};
  auto body = [shape, kernel, copies] {
    standin::run_grid(shape, [&] { std::apply(kernel, copies); });
  };
  return standin::launch(*config, reinterpret_cast<const void*>(kernel), std::move(body));
}
/// Replaces CUDA's template of this name, which passes the arguments without their types.
#define cudaLaunchKernelEx standin_launch_kernel

template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* kernel, cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
