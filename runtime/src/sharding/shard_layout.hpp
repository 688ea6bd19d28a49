// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/policy.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace acc::sharding {

/// A contiguous piece of a flat parameter, in elements.
struct Shard {
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

/// Dtypes of a flat parameter, and positions of its parameters, in elements. Every parameter starts
/// at a multiple of `kAlignment`, and the end is padded so that all shards have the same size. Gaps
/// contain zeros.
struct FlatLayout {
  std::vector<std::int64_t> offsets;  ///< by parameter
  std::vector<std::int64_t> numels;   ///< by parameter
  std::int64_t numel = 0;             ///< sum of `numels`, without gaps
  std::int64_t padded_numel = 0;      ///< shard_numel * number of shards
  std::int64_t shard_numel = 0;
  std::string unit = {};  ///< name of the unit, for timelines
  PrecisionPolicy precision = {};

  [[nodiscard]] Shard shard(int rank) const { return {shard_numel * rank, shard_numel}; }
};

/// In elements: 64 bytes of float32, the size of an AVX-512 register and of a cache line.
inline constexpr std::int64_t kAlignment = 16;

/// shards: number of equal parts of the flat parameter.
FlatLayout lay_out(std::span<const std::int64_t> numels, int shards);

/// The layout of one parameter that is divided by rows (`ModelOptions::by_rows`). Without a gap
/// between shards: shard r begins with row r * ceil(rows / shards). rows: its first dimension.
FlatLayout lay_out_rows(std::int64_t numel, std::int64_t rows, int shards);

/// The layout of some parameters of a flat parameter without the others, which have no elements in
/// it: of each shard the same parts of them. All shards have the size of the largest. parameters:
/// indices, rising. shards: the number of equal parts of `layout`.
FlatLayout lay_out_some(const FlatLayout& layout, std::span<const std::size_t> parameters,
                        int shards);

/// The part of a parameter that lies in a shard.
struct Overlap {
  std::int64_t in_parameter = 0;  ///< offset in the parameter
  std::int64_t in_shard = 0;      ///< offset in the shard
  std::int64_t numel = 0;         ///< 0: no element of it
};
Overlap overlap(const FlatLayout& layout, std::size_t index, Shard shard);

}  // namespace acc::sharding
