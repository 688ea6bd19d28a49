// SPDX-License-Identifier: Apache-2.0
#include "sharding/shard_layout.hpp"

#include <algorithm>

namespace acc::sharding {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

// shard_numel is rounded up so that every shard begins at an aligned offset; the padding is at the
// end of the last shards. A small flat parameter may leave the last ranks with nothing but padding.
FlatLayout lay_out(std::span<const std::int64_t> numels, int shards) {
  FlatLayout layout;
  layout.numels.assign(numels.begin(), numels.end());
  std::int64_t end = 0;
  for (const std::int64_t numel : numels) {
    layout.offsets.push_back(end);
    layout.numel += numel;
    end = round_up(end + numel, kAlignment);
  }
  layout.shard_numel = round_up((end + shards - 1) / shards, kAlignment);
  layout.padded_numel = layout.shard_numel * shards;
  return layout;
}

FlatLayout lay_out_rows(std::int64_t numel, std::int64_t rows, int shards) {
  FlatLayout layout{.offsets = {0}, .numels = {numel}, .numel = numel};
  layout.shard_numel = (rows + shards - 1) / shards * (numel / rows);
  layout.padded_numel = layout.shard_numel * shards;
  return layout;
}

// A part that goes on in the next shard is at the end of its shard.
FlatLayout lay_out_some(const FlatLayout& layout, std::span<const std::size_t> parameters,
                        int shards) {
  if (parameters.size() == layout.offsets.size()) {
    return layout;
  }
  const std::int64_t size = layout.padded_numel / shards;
  FlatLayout some = layout;
  some.shard_numel = 0;
  for (int shard = 0; shard < shards; ++shard) {
    std::int64_t end = 0;
    for (const std::size_t i : parameters) {
      end += round_up(overlap(layout, i, {size * shard, size}).numel, kAlignment);
    }
    some.shard_numel = std::max(some.shard_numel, end);
  }
  if (some.shard_numel == size) {
    return layout;
  }
  some.padded_numel = some.shard_numel * shards;
  some.numel = 0;
  std::ranges::fill(some.numels, 0);
  std::ranges::fill(some.offsets, 0);
  for (int shard = 0; shard < shards; ++shard) {
    std::int64_t end = 0;
    for (const std::size_t i : parameters) {
      const Overlap part = overlap(layout, i, {size * shard, size});
      if (part.numel > 0 && part.in_parameter == 0) {
        const bool goes_on = part.numel < layout.numels[i];
        some.offsets[i] =
            some.shard_numel * shard + (goes_on ? some.shard_numel - part.numel : end);
        some.numels[i] = layout.numels[i];
        some.numel += layout.numels[i];
      }
      end += round_up(part.numel, kAlignment);
    }
  }
  return some;
}

Overlap overlap(const FlatLayout& layout, std::size_t index, Shard shard) {
  const std::int64_t first = layout.offsets[index];
  const std::int64_t begin = std::max(first, shard.offset);
  const std::int64_t end = std::min(first + layout.numels[index], shard.offset + shard.numel);
  if (begin >= end) {
    return {};
  }
  return {.in_parameter = begin - first, .in_shard = begin - shard.offset, .numel = end - begin};
}

}  // namespace acc::sharding
