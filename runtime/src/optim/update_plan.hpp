#pragma once

#include "device/device.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace acc::optim {

/// Elements of a shard that are updated with one group's rates.
struct GroupRanges {
  std::size_t group;
  std::vector<device::UpdateRange> ranges;
};

/// What the step updates at a time, in the order of memory.
using Tile = std::vector<GroupRanges>;

/// The shard that this rank owns of `flat` in tiles of at most `tile_numel` elements, down to a
/// multiple of `sharding::kAlignment` and at least that; 0: one tile. groups: of each parameter.
std::vector<Tile> plan_updates(const sharding::FlatParameter& flat,
                               std::span<const std::size_t> groups, std::int64_t tile_numel);

}  // namespace acc::optim
