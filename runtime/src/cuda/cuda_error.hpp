#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace acc::cuda {

/// Throws Error(device) that names the call, CUDA's name for the error and its text, and the GPU,
/// unless `status` is cudaSuccess. Work that was queued earlier may be what failed.
void check(cudaError_t status, const char* call, int device);

/// "cudaErrorInvalidValue (1): invalid argument".
std::string describe(cudaError_t status);

}  // namespace acc::cuda
