#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace acc::sharding {

/// A contiguous piece of a flat parameter, in elements.
struct Shard {
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

/// Where each parameter lies in its flat parameter. Every parameter starts on a multiple of
/// `kAlignment` elements and the end is padded so that all shards have one size; gaps stay zero.
struct FlatLayout {
  std::vector<std::int64_t> offsets;  ///< of each parameter
  std::vector<std::int64_t> numels;
  std::int64_t numel = 0;         ///< sum of the parameters, without gaps
  std::int64_t padded_numel = 0;  ///< shard_numel * number of shards
  std::int64_t shard_numel = 0;

  [[nodiscard]] Shard shard(int rank) const { return {shard_numel * rank, shard_numel}; }
};

/// 64 bytes of float32: a vector register and a cache line.
inline constexpr std::int64_t kAlignment = 16;

FlatLayout lay_out(std::span<const std::int64_t> numels, int shards);

/// The part of parameter `index` that lies in `shard`: where it begins in the parameter, in the
/// shard, and how long it is (0: none of it).
struct Overlap {
  std::int64_t in_parameter = 0;
  std::int64_t in_shard = 0;
  std::int64_t numel = 0;
};
Overlap overlap(const FlatLayout& layout, std::size_t index, Shard shard);

}  // namespace acc::sharding
