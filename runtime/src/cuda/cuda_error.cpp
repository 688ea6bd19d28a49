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
  (void)cudaGetLastError();  // else the next launch reports it once more
  throw Error(Errc::device, fmt::format("cuda:{}: {}: {}; what failed may be work that was queued "
                                        "earlier (CUDA_LAUNCH_BLOCKING=1 names it)",
                                        device, call, describe(status)));
}

}  // namespace acc::cuda
