#pragma once

#include "sharding/engine.hpp"
#include "sharding/weight_storage.hpp"

#include <cstddef>
#include <cstdint>

namespace acc::sharding {

/// A copy of one flat parameter over fewer ranks than the shard group has, made from the gathered
/// weights when they are freed; while it is valid it serves the gathers. Two lifetimes:
/// - hpZ (ZeRO++, arXiv 2306.10209): from the first time on that the unit is freed and gathered
///   again, until the next step;
/// - reshard_after_forward as a size (FSDP 2): from each forward to its backward.
class SecondaryCopy {
 public:
  SecondaryCopy(Engine& engine, std::size_t full_nbytes);

  [[nodiscard]] bool valid() const noexcept { return valid_; }
  void invalidate() noexcept { valid_ = false; }
  /// As of WeightStorage.
  Gathering begin_unshard();
  const std::byte* finish_unshard();
  /// `full`: what was gathered over the shard group, or null where it came from this copy.
  void reshard(const std::byte* full, NextUse next);
  void settle();
  [[nodiscard]] std::int64_t held_nbytes() const;

 private:
  void keep(const std::byte* full);

  Engine& engine_;
  collectives::ProcessGroup& group_;
  bool lasts_to_step_;
  std::size_t full_nbytes_;
  std::size_t part_nbytes_;
  collectives::BufferPtr memory_;  ///< the part; all of it where the group shares gathered memory
  collectives::BufferPtr full_;
  collectives::WorkPtr gather_;
  bool valid_ = false;
};

}  // namespace acc::sharding
