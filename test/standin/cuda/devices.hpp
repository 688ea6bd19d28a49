#pragma once

#include "standin/settings.hpp"

#include <cuda_runtime_api.h>

#include <string_view>
#include <vector>

/// What the API's functions share: the devices that this process sees, and how calls fail.
namespace standin {

/// Read once.
const Settings& settings();
/// The machine's number of each device that this process sees.
const std::vector<int>& devices();
int current_device();
cudaError_t set_current_device(int device);

/// 0, or what the driver's state makes of any call that needs it.
cudaError_t driver_state();
/// Whether this is the call that ACC_STANDIN_FAIL names.
bool injected_failure(std::string_view function);

/// A device whose kernel faulted fails every later call.
cudaError_t device_fault(int device);

cudaError_t last_error(bool clear);
cudaError_t remember(cudaError_t error);

/// Whether this thread runs a host function of a stream, where CUDA's functions are not allowed.
bool& inside_host_function();

/// The frame of an API function that needs a device.
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
