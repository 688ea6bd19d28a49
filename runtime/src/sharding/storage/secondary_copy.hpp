// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/context.hpp"
#include "sharding/pools.hpp"
#include "sharding/weight_storage.hpp"

#include <cstddef>
#include <cstdint>

namespace acc::sharding {

/// A second copy of one flat parameter, sharded over fewer ranks than the shard group has. It is
/// made from the gathered weights when they are freed; while it is valid, gathers use it, and so
/// need only those ranks. Two lifetimes:
/// - hpZ (ZeRO++, arXiv 2306.10209): from the first freeing that is followed by another gather,
///   until the next step;
/// - reshard_after_forward as a size (FSDP 2): from each forward to its backward.
class SecondaryCopy {
 public:
  /// gathers: buffers of the secondary group. context, gathers: outlive this object.
  SecondaryCopy(const Context& context, GatherPool& gathers, std::size_t full_nbytes);

  [[nodiscard]] bool valid() const noexcept { return valid_; }
  void invalidate() noexcept { valid_ = false; }
  /// As in WeightStorage.
  Gathering begin_unshard();
  const std::byte* finish_unshard();
  /// full: the weights gathered over the shard group; null if they were gathered from this copy.
  void reshard(const std::byte* full, NextUse next);
  void settle();
  void renew();
  [[nodiscard]] std::int64_t held_nbytes() const;

 private:
  void keep(const std::byte* full);

  const Context& context_;
  GatherPool& gathers_;
  collectives::ProcessGroup& group_;
  bool lasts_to_step_;
  std::size_t full_nbytes_;
  std::size_t part_nbytes_;
  collectives::BufferPtr memory_;  ///< this rank's part, or all if the group shares memory
  collectives::BufferPtr full_;
  collectives::WorkPtr gather_;
  bool valid_ = false;
};

}  // namespace acc::sharding
