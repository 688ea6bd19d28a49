// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>

/// Table of the devices' memory, which is host memory, and of page-locked host memory.
namespace standin {

class MemoryTable {
 public:
  static MemoryTable& instance();

  cudaError_t allocate(int device, std::size_t nbytes, void** address);
  cudaError_t release(void* address);
  [[nodiscard]] std::size_t free_bytes(int device) const;

  cudaError_t allocate_host(std::size_t nbytes, void** address);
  cudaError_t release_host(void* address);
  cudaError_t pin(void* address, std::size_t nbytes);
  cudaError_t unpin(void* address);

  [[nodiscard]] bool is_pinned(const void* address) const;
  /// Device to which an address belongs; -1 if it is not device memory.
  [[nodiscard]] int device_of(const void* address) const;
  /// Ends the process if the range overlaps freed memory or reaches past an allocation. `what`
  /// names the call. Memory that is not device memory is not checked.
  void check(const void* address, std::size_t nbytes, const char* what) const;

 private:
  struct Allocation {
    std::size_t nbytes = 0;
    int device = 0;
    long serial = 0;  ///< number in the process, from 1
  };
  struct Pinned {
    std::size_t nbytes = 0;
    bool ours = false;  ///< allocated by allocate_host
  };
  using Address = std::uintptr_t;

  void check_live(Address begin, std::size_t nbytes, const char* what) const;
  void check_freed(Address begin, std::size_t nbytes, const char* what) const;
  void quarantine(Address begin, const Allocation& allocation);
  void give_back_oldest();

  mutable std::mutex mutex_;
  std::map<Address, Allocation> live_;
  std::map<Address, Allocation> freed_;  ///< kept for a while, to detect late uses
  std::deque<Address> freed_order_;
  std::size_t freed_bytes_ = 0;
  std::map<int, std::size_t> used_;
  std::map<Address, Pinned> pinned_;
  long serial_ = 0;
};

}  // namespace standin
