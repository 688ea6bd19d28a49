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
    {ACC_ERROR(cudaErrorIllegalState), "the operation cannot be performed in the present state"},
    {ACC_ERROR(cudaErrorStreamCaptureUnsupported),
     "operation not permitted when stream is capturing"},
    {ACC_ERROR(cudaErrorStreamCaptureInvalidated),
     "operation failed due to a previous error during capture"},
    {ACC_ERROR(cudaErrorStreamCaptureMerge),
     "operation would result in a merge of separate capture sequences"},
    {ACC_ERROR(cudaErrorStreamCaptureUnmatched),
     "capture was not ended in the same stream as it began"},
    {ACC_ERROR(cudaErrorStreamCaptureUnjoined), "capturing stream has unjoined work"},
    {ACC_ERROR(cudaErrorStreamCaptureIsolation),
     "dependency created on uncaptured work in another stream"},
    {ACC_ERROR(cudaErrorStreamCaptureImplicit),
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {ACC_ERROR(cudaErrorCapturedEvent),
     "operation not permitted on an event last recorded in a capturing stream"},
    {ACC_ERROR(cudaErrorStreamCaptureWrongThread),
     "attempt to terminate a thread-local capture sequence from another thread"},
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
