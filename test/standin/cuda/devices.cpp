// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/devices.hpp"

#include "standin/cuda/standin.hpp"

#include <map>
#include <mutex>
#include <string>

namespace standin {
namespace {

struct State {
  std::mutex mutex;
  std::map<int, cudaError_t> faults;
  long calls_of_failing = 0;
};

State& state() {
  static State* const the_state = new State;  // outlives the threads that run streams
  return *the_state;
}

thread_local int this_threads_device = 0;
thread_local cudaError_t this_threads_error = cudaSuccess;

}  // namespace

const Settings& settings() {
  static const Settings* const read = new Settings(read_settings());
  return *read;
}

const std::vector<int>& devices() {
  static const auto* const visible = new std::vector<int>(visible_devices(settings()));
  return *visible;
}

int current_device() {
  return this_threads_device;
}

cudaError_t set_current_device(int device) {
  if (device < 0 || device >= static_cast<int>(devices().size())) {
    return cudaErrorInvalidDevice;
  }
  this_threads_device = device;
  return cudaSuccess;
}

cudaError_t driver_state() {
  switch (settings().fault) {
    case Fault::no_driver:
    case Fault::old_driver: return cudaErrorInsufficientDriver;
    case Fault::no_device: return cudaErrorNoDevice;
    case Fault::none: break;
  }
  return devices().empty() ? cudaErrorNoDevice : cudaSuccess;
}

bool injected_failure(std::string_view function) {
  if (settings().failing != function) {
    return false;
  }
  const std::lock_guard lock(state().mutex);
  return ++state().calls_of_failing == settings().failing_call;
}

cudaError_t device_fault(int device) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().faults.find(device);
  return found == state().faults.end() ? cudaSuccess : found->second;
}

void fail_device(int device, cudaError_t error) {
  const std::lock_guard lock(state().mutex);
  state().faults.emplace(device, error);
}

cudaError_t last_error(bool clear) {
  const cudaError_t error = this_threads_error;
  if (clear) {
    this_threads_error = cudaSuccess;
  }
  return error;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) {
    this_threads_error = error;
  }
  return error;
}

bool& inside_host_function() {
  static thread_local bool inside = false;
  return inside;
}

}  // namespace standin
