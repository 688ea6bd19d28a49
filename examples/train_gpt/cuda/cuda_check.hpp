// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/base/error.hpp>
#include <cuda_runtime_api.h>

#include <string>

namespace train_gpt::cuda {

/// Throws Error(device) if a CUDA call failed. The error may come from work that was queued
/// earlier. what: operation, for the message.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw acc::Error(acc::Errc::device, std::string(what) +
                                            " failed on the GPU: " + cudaGetErrorString(status) +
                                            " (" + cudaGetErrorName(status) + ")");
  }
}

/// True if the work of `stream` is being captured as a graph, also after an error of the capture.
inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace train_gpt::cuda
