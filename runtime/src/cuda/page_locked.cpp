// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_locked.hpp"

#include "acc/base/machine.hpp"
#include "cuda/cuda_error.hpp"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

namespace acc::cuda {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
/// Least bytes that are worth a thread.
constexpr std::size_t kPerThread = std::size_t{64} << 20;

/// Makes the system provide all pages now.
void touch(std::byte* data, std::size_t nbytes) {
  const std::size_t threads =
      std::clamp<std::size_t>(nbytes / kPerThread, 1, static_cast<std::size_t>(usable_cores()));
  const std::size_t share = (nbytes / threads + kHugePage) / kHugePage * kHugePage;
  const auto touch_from = [=](std::size_t begin) {
    for (std::size_t at = begin; at < std::min(begin + share, nbytes); at += kPage) {
      data[at] = std::byte{0};
    }
  };
  std::vector<std::jthread> others;
  std::size_t begin = share;
  try {
    for (; begin < nbytes; begin += share) {
      others.emplace_back(touch_from, begin);
    }
  } catch (const std::system_error&) {  // no more threads: this one does the rest
    for (; begin < nbytes; begin += share) {
      touch_from(begin);
    }
  }
  touch_from(0);
}

struct Mapping {
  void* begin = nullptr;
  std::size_t nbytes = 0;
};

/// Maps memory, all pages of it present, that begins at a huge page. Returns its begin, or null if
/// there is not enough: the system would end the process when it is touched.
std::byte* map(std::size_t nbytes, Mapping& mapping) {
  mapping.nbytes = nbytes + kHugePage;
  if (nbytes >= kPerThread && static_cast<std::int64_t>(nbytes) > machine_memory().available) {
    return nullptr;
  }
  mapping.begin =
      ::mmap(nullptr, mapping.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping.begin == MAP_FAILED) {
    return nullptr;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping.begin);
  auto* const data =
      reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  ::madvise(data, nbytes, MADV_HUGEPAGE);  // only a hint
  // fork(2) would copy locked pages at once, and a core dump would have all of them.
  ::madvise(data, nbytes, MADV_DONTFORK);
  ::madvise(data, nbytes, MADV_DONTDUMP);
  touch(data, nbytes);
  return data;
}

}  // namespace

device::RawMemory page_locked_memory(int device) {
  // Guarded by the lock of the allocator that calls these functions.
  const auto mappings = std::make_shared<std::unordered_map<std::byte*, Mapping>>();
  return {.allocate = [=](std::size_t nbytes) -> std::byte* {
            check(cudaSetDevice(device), "cudaSetDevice", device);
            Mapping mapping;
            std::byte* const data = map(nbytes, mapping);
            if (data == nullptr) {
              return nullptr;
            }
            const cudaError_t status = cudaHostRegister(data, nbytes, cudaHostRegisterDefault);
            if (status == cudaSuccess) {
              mappings->emplace(data, mapping);
              return data;
            }
            ::munmap(mapping.begin, mapping.nbytes);
            (void)cudaGetLastError();
            if (status != cudaErrorMemoryAllocation) {
              check(status, "cudaHostRegister", device);
            }
            return nullptr;
          },
          .release =
              [=](std::byte* data) {
                (void)cudaSetDevice(device);
                (void)cudaDeviceSynchronize();  // queued work may still use the memory
                (void)cudaHostUnregister(data);
                const auto found = mappings->find(data);
                ::munmap(found->second.begin, found->second.nbytes);
                mappings->erase(found);
              }};
}

}  // namespace acc::cuda
