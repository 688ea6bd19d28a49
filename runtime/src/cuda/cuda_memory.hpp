#pragma once

#include "device/caching_allocator.hpp"
#include "device/device.hpp"
#include "device/memory_ledger.hpp"

#include <atomic>
#include <string>
#include <string_view>

namespace acc::cuda {

/// A GPU's memory and the page-locked host memory beside it, each with its cache. Outlives the
/// device where somebody still holds some.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  explicit MemoryPool(int device);

  /// Holds what was there before. Throws Error(out_of_memory) that says who holds what.
  device::MemoryPtr allocate(std::size_t nbytes, std::string_view what);
  device::MemoryPtr allocate_host(std::size_t nbytes, std::string_view what);
  void account(std::int64_t nbytes, std::string_view what);
  /// Gives what is cached and unused back to the driver.
  void trim() { gpu_.release_cached(); }
  /// A sentence on who holds what, where that much was not to be had.
  [[nodiscard]] std::string does_not_fit(std::size_t nbytes, std::string_view what) const;
  [[nodiscard]] device::MemoryFigures figures() const;

 private:
  class Piece;
  class HostPiece;

  int device_;
  device::CachingAllocator gpu_;
  device::CachingAllocator host_;
  device::MemoryLedger ledger_;
  std::atomic<std::int64_t> accounted_ = 0;  ///< bytes that others got from the driver
};

}  // namespace acc::cuda
