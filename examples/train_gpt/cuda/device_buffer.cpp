#include "device_buffer.hpp"

#include "cuda_check.hpp"

#include <atomic>
#include <string>

namespace train_gpt::cuda {
namespace {

std::atomic<std::int64_t> allocated_bytes{0};

std::string mebibytes(std::size_t nbytes) {
  return std::to_string(nbytes >> 20) + " MiB";
}

[[noreturn]] void fail_allocation(std::size_t nbytes, const char* what) {
  cudaGetLastError();  // clears what is not fatal to the context
  std::size_t free = 0;
  std::size_t total = 0;
  cudaMemGetInfo(&free, &total);
  throw acc::Error(acc::Errc::out_of_memory,
                   mebibytes(nbytes) + " of GPU memory for " + what +
                       " are not there: " + mebibytes(free) + " of " + mebibytes(total) +
                       " are free, " + mebibytes(static_cast<std::size_t>(device_bytes())) +
                       " are the model's own already; a smaller --micro_batch or --seq_len, or "
                       "more sharding, needs less");
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
