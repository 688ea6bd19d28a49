#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace acc::device {

/// Where memory comes from: the driver, as a rule.
struct RawMemory {
  /// Null where there is not enough; aligned to 512 bytes at least.
  std::function<std::byte*(std::size_t nbytes)> allocate;
  /// All work that uses the memory is done when this returns.
  std::function<void(std::byte* data)> release;
};

/// Keeps what it got from a driver whose own allocation is slow, and makes it wait for all work, at
/// that. Segments come in whole multiples of 2 MiB and are cut into blocks: the smallest free one
/// that fits is split, and neighbours that are free become one again. Blocks of up to 1 MiB have
/// segments of their own, so that they do not pin large ones in pieces. Any thread.
class CachingAllocator {
 public:
  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kSegmentGranularity = std::size_t{2} << 20;
  static constexpr std::size_t kLargestSmall = std::size_t{1} << 20;

  explicit CachingAllocator(RawMemory raw) : raw_(std::move(raw)) {}
  /// Gives everything back, also what is still in use: nothing may be.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Aligned to 512 bytes; no null for 0 bytes. When the driver is short, unused segments go back
  /// to it first; null when that is not enough either.
  std::byte* allocate(std::size_t nbytes);
  /// What `allocate` gave, for reuse.
  void release(std::byte* data) noexcept;
  /// Gives unused segments back. Returns their bytes.
  std::size_t release_cached();

  [[nodiscard]] std::size_t in_use() const;    ///< bytes of blocks handed out
  [[nodiscard]] std::size_t reserved() const;  ///< bytes of all segments

 private:
  struct Segment {
    std::size_t nbytes;
    bool small;
  };
  struct Block {
    std::size_t nbytes;
    std::byte* segment;  ///< where its segment begins
    bool used;
  };
  using Blocks = std::map<std::byte*, Block>;
  using FreeBlocks = std::set<std::pair<std::size_t, std::byte*>>;

  FreeBlocks& free_blocks(const Block& block);
  Blocks::iterator find_free(std::size_t nbytes, bool small);
  Blocks::iterator add_segment(std::size_t nbytes, bool small);
  void split(Blocks::iterator block, std::size_t nbytes, bool small);
  Blocks::iterator merge(Blocks::iterator left, Blocks::iterator right);
  std::size_t release_unused();

  mutable std::mutex mutex_;
  RawMemory raw_;
  std::unordered_map<std::byte*, Segment> segments_;
  Blocks blocks_;  ///< all, by address
  FreeBlocks free_small_;
  FreeBlocks free_large_;
  std::size_t in_use_ = 0;
  std::size_t reserved_ = 0;
};

}  // namespace acc::device
