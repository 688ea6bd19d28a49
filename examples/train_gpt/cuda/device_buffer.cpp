// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_buffer.hpp"

#include "cuda/cuda_check.hpp"

#include <atomic>
#include <string>

namespace train_gpt::cuda {
namespace {

std::atomic<std::int64_t> allocated_bytes{0};

std::string mebibytes(std::size_t nbytes) {
  return std::to_string(nbytes >> 20) + " MiB";
}

[[noreturn]] void fail_allocation(std::size_t nbytes, const char* what) {
  cudaGetLastError();  // clears the error; a failed allocation does not damage the context
  std::size_t free = 0;
  std::size_t total = 0;
  cudaMemGetInfo(&free, &total);
  throw acc::Error(acc::Errc::out_of_memory,
                   "GPU out of memory (OOM): cannot allocate " + mebibytes(nbytes) + " for " +
                       what + ": " + mebibytes(free) + " of " + mebibytes(total) +
                       " are free, the model already uses " +
                       mebibytes(static_cast<std::size_t>(device_bytes())) +
                       "; reduce --micro_batch or --seq_len, or shard more");
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t nbytes, const char* what) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, nbytes);
  if (status == cudaErrorMemoryAllocation) {
    fail_allocation(nbytes, what);
  }
  check(status, "an allocation");
  data_ = {data, Free{nbytes}};
  allocated_bytes += static_cast<std::int64_t>(nbytes);
}

void DeviceMemory::Free::operator()(void* data) const {
  cudaFree(data);
  allocated_bytes -= static_cast<std::int64_t>(nbytes);
}

std::int64_t device_bytes() {
  return allocated_bytes;
}

PinnedMemory::PinnedMemory(std::size_t nbytes, const char* what) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, nbytes, cudaHostAllocDefault), what);
  data_.reset(data);
}

void PinnedMemory::Free::operator()(void* data) const {
  cudaFreeHost(data);
}

}  // namespace train_gpt::cuda
