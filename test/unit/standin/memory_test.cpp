// SPDX-License-Identifier: Apache-2.0
#include "device_array.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

using namespace standin_test;

TEST_CASE("fresh device memory holds NaNs") {
  const DeviceArray<double> values(33);
  for (const double value : values.read()) {
    CHECK(std::isnan(value));
  }
}

TEST_CASE("the memory of a device is limited") {
  std::size_t free_before = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free_before, &total));
  CHECK(free_before <= total);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, free_before + 1) == cudaErrorMemoryAllocation);
  CHECK(memory == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);

  std::size_t free_now = 0;
  {
    const DeviceArray<char> some(1000);
    check(cudaMemGetInfo(&free_now, &total));
    CHECK(free_now == free_before - 1000);
  }
  check(cudaMemGetInfo(&free_now, &total));
  CHECK(free_now == free_before);
}

TEST_CASE("a copy's kind must fit its pointers") {
  const DeviceArray<int> device(4);
  std::vector<int> host(4, 5);
  const auto copy = [](void* to, const void* from, cudaMemcpyKind kind) {
    return cudaMemcpy(to, from, 4 * sizeof(int), kind);
  };
  CHECK(copy(device.data(), host.data(), cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(copy(host.data(), device.data(), cudaMemcpyDefault) == cudaSuccess);
  CHECK(host == std::vector(4, 5));
  CHECK(copy(device.data(), host.data(), cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(host.data(), host.data(), cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemset(host.data(), 0, 4) == cudaErrorInvalidValue);
}

TEST_CASE("a copy from pageable memory may reach the device after cudaMemcpy has returned") {
  const DeviceArray<int> device(std::vector<int>(4, 1));
  std::vector<int> host(4, 2);
  check(cudaMemcpy(device.data(), host.data(), 4 * sizeof(int), cudaMemcpyHostToDevice));
  CHECK(*device.data() == 1);
  host.assign(4, 3);  // has been read
  check(cudaDeviceSynchronize());
  CHECK(*device.data() == 2);
}

TEST_CASE("kinds of pointers are distinguished") {
  const DeviceArray<int> device(4);
  int on_stack = 0;
  void* pinned = nullptr;
  check(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault));
  const auto type = [](const void* address) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, address));
    return attributes.type;
  };
  CHECK(type(device.data() + 3) == cudaMemoryTypeDevice);
  CHECK(type(static_cast<char*>(pinned) + 63) == cudaMemoryTypeHost);
  CHECK(type(&on_stack) == cudaMemoryTypeUnregistered);
  CHECK(cudaHostRegister(pinned, 64, cudaHostRegisterDefault) ==
        cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaFreeHost(&on_stack) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}
