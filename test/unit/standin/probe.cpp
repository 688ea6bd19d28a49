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

/// Only the sanitizer can notice a read.
void kernel_reads_past_the_end() {
  const DeviceArray<int> from(15);
  const DeviceArray<int> to(4);
  check(copy_uint4(from.data() + 12, to.data()));
  check(cudaDeviceSynchronize());
}

void kernel_reads_freed() {
  const DeviceArray<int> to(4);
  const int* values = nullptr;
  {
    const DeviceArray<int> freed(4);
    values = freed.data();
  }
  check(copy_uint4(values, to.data()));
  check(cudaDeviceSynchronize());
}

/// Copies a vector that lies `offset` bytes after an aligned address.
void misaligned(cudaError_t (*copy)(const void*, void*), std::size_t offset) {
  const DeviceArray<char> from(64);
  const DeviceArray<char> to(64);
  check(copy(from.data() + offset, to.data()));
  check(cudaDeviceSynchronize());
}

void own_array(int index) {
  const DeviceArray<int> to(1);
  check(read_own_array(index, to.data()));
  std::printf("%d\n", to.read()[0]);
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
    {"kernel_reads_past_the_end", kernel_reads_past_the_end},
    {"kernel_reads_freed", kernel_reads_freed},
    {"misaligned_float4", [] { misaligned(copy_float4, 4); }},
    {"misaligned_uint4", [] { misaligned(copy_uint4, 8); }},
    {"misaligned_bfloat162", [] { misaligned(copy_bfloat162, 2); }},
    {"aligned_float4", [] { misaligned(copy_float4, 16); }},
    {"past_own_array", [] { own_array(4); }},
    {"own_array", [] { own_array(3); }},
    {"devices", devices},
    {"failures", failures},
};

}  // namespace

int main(int, char** argv) {
  kScenarios.at(argv[1])();
  return 0;
}
