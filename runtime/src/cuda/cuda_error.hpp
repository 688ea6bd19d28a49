// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace acc::cuda {

/// Throws Error(device) unless `status` is cudaSuccess. The message has the call, CUDA's name and
/// text of the error, and the GPU. CUDA reports errors late: the failed work may be one that was
/// queued earlier.
void check(cudaError_t status, const char* call, int device);

/// Text of a status, such as "cudaErrorInvalidValue (1): invalid argument".
std::string describe(cudaError_t status);

}  // namespace acc::cuda
