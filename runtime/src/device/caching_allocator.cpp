// SPDX-License-Identifier: Apache-2.0
#include "device/caching_allocator.hpp"

#include <algorithm>
#include <iterator>

// Invariants, under the mutex:
//  - the blocks of a segment cover it without gaps, and two neighbouring blocks of a segment are
//    never both free;
//  - a free block is in the list of its size class (small or large), with its current size as key;
//  - sizes and addresses of blocks are multiples of kAlignment.
namespace acc::device {
namespace {

std::size_t round_up(std::size_t nbytes, std::size_t granularity) {
  return (std::max<std::size_t>(nbytes, 1) + granularity - 1) / granularity * granularity;
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  for (const auto& [data, segment] : segments_) {
    raw_.release(data);
  }
}

CachingAllocator::FreeBlocks& CachingAllocator::free_blocks(const Block& block) {
  return segments_.at(block.segment).small ? free_small_ : free_large_;
}

std::byte* CachingAllocator::allocate(std::size_t nbytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t rounded = round_up(nbytes, kAlignment);
  const bool small = rounded <= kLargestSmall;
  auto block = find_free(rounded, small);
  if (block == blocks_.end()) {
    block = add_segment(rounded, small);
  }
  if (block == blocks_.end()) {
    return nullptr;
  }
  free_blocks(block->second).erase({block->second.nbytes, block->first});
  split(block, rounded, small);
  block->second.used = true;
  in_use_ += block->second.nbytes;
  return block->first;
}

CachingAllocator::Blocks::iterator CachingAllocator::find_free(std::size_t nbytes, bool small) {
  const FreeBlocks& candidates = small ? free_small_ : free_large_;
  const auto found = candidates.lower_bound({nbytes, nullptr});
  return found == candidates.end() ? blocks_.end() : blocks_.find(found->second);
}

CachingAllocator::Blocks::iterator CachingAllocator::add_segment(std::size_t nbytes, bool small) {
  const std::size_t rounded = round_up(nbytes, kSegmentGranularity);
  std::byte* data = raw_.allocate(rounded);
  // The driver may have enough once cached segments that no block uses are returned to it.
  if (data == nullptr && release_unused() > 0) {
    data = raw_.allocate(rounded);
  }
  if (data == nullptr) {
    return blocks_.end();
  }
  segments_.emplace(data, Segment{rounded, small});
  reserved_ += rounded;
  free_blocks({rounded, data, false}).emplace(rounded, data);
  return blocks_.emplace(data, Block{rounded, data, false}).first;
}

// Cuts `block` to `nbytes` and makes a free block of the rest. A rest of a large block that only
// small allocations could use stays with the block, because small allocations have their own
// segments.
void CachingAllocator::split(Blocks::iterator block, std::size_t nbytes, bool small) {
  const std::size_t rest = block->second.nbytes - nbytes;
  if (rest == 0 || (!small && rest <= kLargestSmall)) {
    return;
  }
  block->second.nbytes = nbytes;
  const Block right{rest, block->second.segment, false};
  blocks_.emplace_hint(std::next(block), block->first + nbytes, right);
  free_blocks(right).emplace(rest, block->first + nbytes);
}

// Joins two neighbours. `right` is free, is not in a list of free blocks any more, and vanishes.
CachingAllocator::Blocks::iterator CachingAllocator::merge(Blocks::iterator left,
                                                           Blocks::iterator right) {
  left->second.nbytes += right->second.nbytes;
  blocks_.erase(right);
  return left;
}

void CachingAllocator::release(std::byte* data) noexcept {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.find(data);
  FreeBlocks& free = free_blocks(block->second);
  block->second.used = false;
  in_use_ -= block->second.nbytes;
  const auto mergeable = [&](Blocks::iterator other) {
    return !other->second.used && other->second.segment == block->second.segment;
  };
  if (const auto next = std::next(block); next != blocks_.end() && mergeable(next)) {
    free.erase({next->second.nbytes, next->first});
    block = merge(block, next);
  }
  if (block != blocks_.begin() && mergeable(std::prev(block))) {
    const auto previous = std::prev(block);
    free.erase({previous->second.nbytes, previous->first});
    block = merge(previous, block);
  }
  free.emplace(block->second.nbytes, block->first);
}

std::size_t CachingAllocator::release_cached() {
  const std::lock_guard lock(mutex_);
  return release_unused();
}

std::size_t CachingAllocator::release_unused() {
  std::size_t released = 0;
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto [data, nbytes] = std::pair{segment->first, segment->second.nbytes};
    const auto block = blocks_.find(data);
    // A segment is unused if its first block is free and, after merging, as large as the segment.
    if (block->second.used || block->second.nbytes != nbytes) {
      ++segment;
      continue;
    }
    free_blocks(block->second).erase({nbytes, data});
    blocks_.erase(block);
    segment = segments_.erase(segment);
    raw_.release(data);
    released += nbytes;
  }
  reserved_ -= released;
  return released;
}

std::size_t CachingAllocator::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t CachingAllocator::reserved() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

}  // namespace acc::device
