// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_error.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

namespace acc::cuda {

std::string describe(cudaError_t status) {
  return fmt::format("{} ({}): {}", cudaGetErrorName(status), static_cast<int>(status),
                     cudaGetErrorString(status));
}

void check(cudaError_t status, const char* call, int device) {
  if (status == cudaSuccess) {
    return;
  }
  (void)cudaGetLastError();  // clears it; otherwise the next launch reports the same error again
  throw Error(Errc::device,
              fmt::format("cuda:{}: {}: {}; the error may come from work that was queued earlier "
                          "(set CUDA_LAUNCH_BLOCKING=1 to find it)",
                          device, call, describe(status)));
}

}  // namespace acc::cuda
