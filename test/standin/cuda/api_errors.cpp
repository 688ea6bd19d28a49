// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/devices.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define ACC_ERROR(error) error, #error
constexpr ErrorText kErrors[] = {
    {ACC_ERROR(cudaSuccess), "no error"},
    {ACC_ERROR(cudaErrorInvalidValue), "invalid argument"},
    {ACC_ERROR(cudaErrorMemoryAllocation), "out of memory"},
    {ACC_ERROR(cudaErrorInvalidConfiguration), "invalid configuration argument"},
    {ACC_ERROR(cudaErrorInsufficientDriver),
     "CUDA driver version is insufficient for CUDA runtime version"},
    {ACC_ERROR(cudaErrorInvalidDeviceFunction), "invalid device function"},
    {ACC_ERROR(cudaErrorNoDevice), "no CUDA-capable device is detected"},
    {ACC_ERROR(cudaErrorInvalidDevice), "invalid device ordinal"},
    {ACC_ERROR(cudaErrorInvalidResourceHandle), "invalid resource handle"},
    {ACC_ERROR(cudaErrorNotReady), "device not ready"},
    {ACC_ERROR(cudaErrorIllegalAddress), "an illegal memory access was encountered"},
    {ACC_ERROR(cudaErrorMisalignedAddress), "misaligned address"},
    {ACC_ERROR(cudaErrorHostMemoryAlreadyRegistered),
     "part or all of the requested memory range is already mapped"},
    {ACC_ERROR(cudaErrorHostMemoryNotRegistered),
     "pointer does not correspond to a registered memory region"},
    {ACC_ERROR(cudaErrorLaunchFailure), "unspecified launch failure"},
    {ACC_ERROR(cudaErrorNotPermitted), "operation not permitted"},
    {ACC_ERROR(cudaErrorNotSupported), "operation not supported"},
    {ACC_ERROR(cudaErrorUnknown), "unknown error"},
};
#undef ACC_ERROR

const ErrorText* find(cudaError_t error) {
  const auto* found = std::ranges::find(kErrors, error, &ErrorText::error);
  return found == std::end(kErrors) ? nullptr : found;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
  return standin::last_error(/*clear=*/true);
}
cudaError_t cudaPeekAtLastError() {
  return standin::last_error(/*clear=*/false);
}

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find(error);
  return found == nullptr ? "unrecognized error code" : found->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = find(error);
  return found == nullptr ? "unrecognized error code" : found->text;
}

}  // extern "C"
