// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/settings.hpp"

#include <cuda_runtime_api.h>

#include <string_view>
#include <vector>

/// State shared by the API functions: the devices that this process sees, and the errors of calls.
namespace standin {

/// The settings, read once per process.
const Settings& settings();
/// Number on the machine of each device that this process sees.
const std::vector<int>& devices();
int current_device();
cudaError_t set_current_device(int device);

/// Error that the driver's state causes in every call that needs it; 0 if there is none.
cudaError_t driver_state();
/// True if this is the call that ACC_STANDIN_FAIL selects.
bool injected_failure(std::string_view function);

/// A device whose kernel faulted fails every later call.
cudaError_t device_fault(int device);

cudaError_t last_error(bool clear);
cudaError_t remember(cudaError_t error);

/// True while this thread runs a host function of a stream, in which CUDA functions are not
/// allowed.
bool& inside_host_function();

/// Common frame of all API functions that need a device: checks the driver's state and injected
/// failures.
template <typename Body>
cudaError_t api_call(const char* name, Body&& body) {
  if (const cudaError_t error = driver_state(); error != cudaSuccess) {
    return remember(error);
  }
  if (inside_host_function()) {
    return remember(cudaErrorNotPermitted);
  }
  if (const cudaError_t fault = device_fault(current_device()); fault != cudaSuccess) {
    return remember(fault);
  }
  if (injected_failure(name)) {
    return remember(cudaErrorUnknown);
  }
  return remember(body());
}

}  // namespace standin
