// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace acc::device {

/// Source of memory, usually the driver.
struct RawMemory {
  /// Returns null if there is not enough memory. Aligned to at least 512 bytes.
  std::function<std::byte*(std::size_t nbytes)> allocate;
  /// Waits until all work that uses the memory is complete, then frees it.
  std::function<void(std::byte* data)> release;
};

/// Caches memory of a driver, because the driver's allocation is slow and its release waits for all
/// work of the device.
///
/// Memory is requested from the driver in segments, whole multiples of 2 MiB, which are cut into
/// blocks. An allocation takes the smallest free block that fits and splits it; a released block is
/// merged with free neighbours in its segment. Blocks of up to 1 MiB have separate segments, so
/// that small allocations do not fragment the large ones. The allocator knows nothing of streams: a
/// released block may be handed out again at once, and the owner orders the work (see device.hpp,
/// Memory). Any thread.
class CachingAllocator {
 public:
  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kSegmentGranularity = std::size_t{2} << 20;
  static constexpr std::size_t kLargestSmall = std::size_t{1} << 20;

  explicit CachingAllocator(RawMemory raw) : raw_(std::move(raw)) {}
  /// Releases all segments to the driver. No block may be in use.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns memory aligned to 512 bytes, also for 0 bytes. If the driver has not enough memory,
  /// releases unused segments to it and tries again; returns null if that fails too.
  std::byte* allocate(std::size_t nbytes);
  /// Takes back memory of `allocate` for reuse.
  void release(std::byte* data) noexcept;
  /// Releases unused segments to the driver. Returns their size in bytes.
  std::size_t release_cached();

  [[nodiscard]] std::size_t in_use() const;    ///< bytes of used blocks
  [[nodiscard]] std::size_t reserved() const;  ///< bytes of all segments

 private:
  struct Segment {
    std::size_t nbytes;
    bool small;
  };
  struct Block {
    std::size_t nbytes;
    std::byte* segment;  ///< start of its segment
    bool used;
  };
  using Blocks = std::map<std::byte*, Block>;
  using FreeBlocks = std::set<std::pair<std::size_t, std::byte*>>;  ///< by size, then address

  FreeBlocks& free_blocks(const Block& block);
  Blocks::iterator find_free(std::size_t nbytes, bool small);
  Blocks::iterator add_segment(std::size_t nbytes, bool small);
  void split(Blocks::iterator block, std::size_t nbytes, bool small);
  Blocks::iterator merge(Blocks::iterator left, Blocks::iterator right);
  std::size_t release_unused();

  mutable std::mutex mutex_;
  RawMemory raw_;
  std::unordered_map<std::byte*, Segment> segments_;  ///< by start address
  Blocks blocks_;  ///< free and used blocks of all segments, by address
  FreeBlocks free_small_;
  FreeBlocks free_large_;
  std::size_t in_use_ = 0;
  std::size_t reserved_ = 0;
};

}  // namespace acc::device
