#include "optim/update_plan.hpp"

#include <algorithm>

namespace acc::optim {
namespace {

GroupRanges& ranges_of(Tile& tile, std::size_t group) {
  const auto found = std::find_if(tile.begin(), tile.end(),
                                  [group](const auto& each) { return each.group == group; });
  return found != tile.end() ? *found : tile.emplace_back(GroupRanges{group, {}});
}

}  // namespace

// Goes through the parameters in memory order and cuts the part of each that lies in the shard at
// tile boundaries. A range never crosses a parameter, so it has one group and one weight decay.
std::vector<Tile> plan_updates(const sharding::FlatParameter& flat,
                               std::span<const std::size_t> groups, std::int64_t tile_numel) {
  const std::int64_t whole = flat.owned().numel;
  const std::int64_t aligned = tile_numel / sharding::kAlignment * sharding::kAlignment;
  const std::int64_t size =
      tile_numel == 0 ? std::max<std::int64_t>(1, whole) : std::max(sharding::kAlignment, aligned);
  std::vector<Tile> tiles(static_cast<std::size_t>((whole + size - 1) / size));
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const sharding::Overlap part = overlap(flat.layout(), i, flat.owned());
    const std::int64_t end = part.in_shard + part.numel;
    for (std::int64_t begin = part.in_shard; begin < end;) {
      const std::int64_t tile = begin / size;
      const std::int64_t numel = std::min(end, (tile + 1) * size) - begin;
      ranges_of(tiles[static_cast<std::size_t>(tile)], groups[i])
          .ranges.push_back({begin, numel, flat.parameters()[i].weight_decay});
      begin += numel;
    }
  }
  std::erase_if(tiles, [](const Tile& tile) { return tile.empty(); });  // only padding in it
  return tiles;
}

}  // namespace acc::optim
