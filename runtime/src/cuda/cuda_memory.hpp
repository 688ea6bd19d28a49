// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/caching_allocator.hpp"
#include "device/device.hpp"
#include "device/memory_ledger.hpp"

#include <atomic>
#include <string>
#include <string_view>

namespace acc::cuda {

/// Memory of a GPU and page-locked host memory, each with its own cache. Each piece of memory holds
/// a reference to the pool, so the pool outlives the device if pieces do.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  explicit MemoryPool(int device);

  /// Not initialized. Throws Error(out_of_memory) with the memory in use per purpose.
  device::MemoryPtr allocate(std::size_t nbytes, std::string_view what);
  device::MemoryPtr allocate_host(std::size_t nbytes, std::string_view what);
  void account(std::int64_t nbytes, std::string_view what);
  /// Returns cached, unused memory to the driver.
  void trim() { gpu_.release_cached(); }
  /// Out-of-memory message for an allocation of `nbytes`: free, total, and used memory per purpose.
  [[nodiscard]] std::string does_not_fit(std::size_t nbytes, std::string_view what) const;
  [[nodiscard]] device::MemoryMetrics figures() const;

 private:
  class Piece;
  class HostPiece;

  int device_;
  device::CachingAllocator gpu_;
  device::CachingAllocator host_;
  device::MemoryLedger ledger_;
  std::atomic<std::int64_t> accounted_ = 0;  ///< bytes allocated elsewhere (`account`)
};

}  // namespace acc::cuda
