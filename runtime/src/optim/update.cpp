// SPDX-License-Identifier: Apache-2.0
#include "optim/update.hpp"

#include <algorithm>
#include <cmath>

namespace acc::optim {

// torch.optim.AdamW (arXiv 1711.05101, algorithm 2), rearranged so that the kernel multiplies by
// constants of the step:
//   weight = weight * decay - step_size * m / (sqrt(v) / sqrt_bias_correction2 + eps)
kernels::AdamWCoefficients adamw_coefficients(const AdamW& settings, std::int64_t step,
                                              double grad_scale) noexcept {
  const auto power = static_cast<double>(step);
  const double bias_correction1 = 1.0 - std::pow(settings.beta1, power);
  const double bias_correction2 = 1.0 - std::pow(settings.beta2, power);
  return {
      .grad_scale = static_cast<float>(grad_scale),
      .decay = static_cast<float>(1.0 - settings.lr * settings.weight_decay),
      .beta1_complement = static_cast<float>(1.0 - settings.beta1),
      .beta2 = static_cast<float>(settings.beta2),
      .beta2_complement = static_cast<float>(1.0 - settings.beta2),
      .sqrt_bias_correction2 = static_cast<float>(std::sqrt(bias_correction2)),
      .eps = static_cast<float>(settings.eps),
      .step_size = static_cast<float>(settings.lr / bias_correction1),
  };
}

kernels::SgdCoefficients sgd_coefficients(const Sgd& settings, std::int64_t step,
                                          double grad_scale) noexcept {
  return {
      .grad_scale = static_cast<float>(grad_scale),
      .lr = static_cast<float>(settings.lr),
      .momentum = static_cast<float>(settings.momentum),
      .weight_decay = static_cast<float>(settings.weight_decay),
      .nesterov = settings.nesterov,
      .first = step == 1,  // torch initialises the velocity with the first gradient
  };
}

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
