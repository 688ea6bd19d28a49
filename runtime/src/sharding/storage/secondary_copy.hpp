#pragma once

#include "sharding/engine.hpp"

#include <cstddef>
#include <cstdint>

namespace acc::sharding {

/// A copy of one flat parameter over fewer ranks than the shard group has, made from the gathered
/// weights; while it is valid it serves the gathers. hpZ (ZeRO++, arXiv 2306.10209): made when a
/// unit is first freed, valid until the next step.
class SecondaryCopy {
 public:
  SecondaryCopy(Engine& engine, std::size_t full_nbytes);

  [[nodiscard]] bool valid() const noexcept { return valid_; }
  void invalidate() noexcept { valid_ = false; }
  /// Takes this rank's part of `full` unless there is a valid one.
  void keep(const std::byte* full);
  /// As of WeightStorage.
  bool begin_unshard();
  const std::byte* finish_unshard();
  void reshard();
  void settle();
  [[nodiscard]] std::int64_t held_nbytes() const;

 private:
  Engine& engine_;
  collectives::ProcessGroup& group_;
  std::size_t full_nbytes_;
  std::size_t part_nbytes_;
  collectives::BufferPtr memory_;  ///< the part; all of it where the group shares gathered memory
  collectives::BufferPtr full_;
  collectives::WorkPtr gather_;
  bool valid_ = false;
};

}  // namespace acc::sharding
