// SPDX-License-Identifier: Apache-2.0
// Runs one action that ends the process or depends on its environment; see probe_test.cpp.
#include "device_array.hpp"
#include "kernels.hpp"

#include <cstdio>
#include <functional>
#include <map>
#include <string>

using namespace standin_test;

namespace {

void use_after_free() {
  void* memory = nullptr;
  check(cudaMalloc(&memory, 4096));
  check(cudaFree(memory));
  check(cudaMemset(static_cast<char*>(memory) + 100, 0, 8));
}

void free_twice() {
  void* memory = nullptr;
  check(cudaMalloc(&memory, 4096));
  check(cudaFree(memory));
  check(cudaFree(memory));
}

void copy_past_the_end() {
  const DeviceArray<char> memory(100);
  check(cudaMemset(memory.data() + 60, 0, 41));
}

/// Addresses of kernels are not checked; a write past the end of an allocation is found in
/// cudaFree.
void kernel_past_the_end() {
  const DeviceArray<int> values(16);
  check(number_threads(dim3(1), dim3(17), values.data()));
}

/// A kernel's write to freed memory is found when the memory is returned, after much more was
/// freed.
void kernel_after_free() {
  int* values = nullptr;
  {
    const DeviceArray<int> freed(16);
    values = freed.data();
  }
  check(number_threads(dim3(1), dim3(16), values));
  const DeviceArray<char> large(std::size_t{65} << 20);
}

void misaligned_vector() {
  const DeviceArray<float> values(12);
  check(copy_vector(values.data() + 1, values.data() + 8));
  check(cudaDeviceSynchronize());
}

void run(cudaError_t (*launch)()) {
  check(launch());
  check(cudaDeviceSynchronize());
}

void print(const char* what, cudaError_t error) {
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
}

void devices() {
  int count = -1;
  print("count", cudaGetDeviceCount(&count));
  int driver = -1;
  check(cudaDriverGetVersion(&driver));
  std::printf("%d devices, driver %d\n", count, driver);
  for (int device = 0; device < count; ++device) {
    char bus[32];
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    std::printf("%d at %s\n", device, bus);
  }
}

void failures() {
  void* memory = nullptr;
  for (int i = 0; i < 3; ++i) {
    print("malloc", cudaMalloc(&memory, 64));
  }
  print("launch", scale_add({}, static_cast<float*>(memory), 1, 1.0F));
  print("synchronize", cudaDeviceSynchronize());
  print("last", cudaGetLastError());
  print("after", cudaFree(memory));
  check(cudaSetDevice(0) == cudaErrorLaunchFailure ? cudaSuccess : cudaGetLastError());
}

const std::map<std::string, std::function<void()>> kScenarios = {
    {"use_after_free", use_after_free},
    {"free_twice", free_twice},
    {"copy_past_the_end", copy_past_the_end},
    {"kernel_past_the_end", kernel_past_the_end},
    {"kernel_after_free", kernel_after_free},
    {"diverge_at_barrier", [] { run(diverge_at_barrier); }},
    {"diverge_in_warp", [] { run(diverge_in_warp); }},
    {"wait_for_each_other", [] { run(wait_for_each_other); }},
    {"overrun_shared", [] { run(overrun_shared); }},
    {"misaligned_vector", misaligned_vector},
    {"devices", devices},
    {"failures", failures},
};

}  // namespace

int main(int, char** argv) {
  kScenarios.at(argv[1])();
  return 0;
}
