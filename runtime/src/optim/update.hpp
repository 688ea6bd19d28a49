// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/optimizers.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace acc::optim {

/// Settings of an optimizer; the type selects the rule.
using OptimizerSettings = std::variant<AdamW, Sgd, ProgramRule>;

/// Return the coefficients of one step, computed in double, as torch.optim does, and rounded to
/// float once. step: counts from 1. grad_scale: factor on the gradient (loss scale, clipping).
kernels::AdamWCoefficients adamw_coefficients(const AdamW& settings, std::int64_t step,
                                              double grad_scale) noexcept;
kernels::SgdCoefficients sgd_coefficients(const Sgd& settings, std::int64_t step,
                                          double grad_scale) noexcept;

/// Ranges of a shard that are updated with the rates of one group.
struct GroupRanges {
  std::size_t group;
  std::vector<device::UpdateRange> ranges;
};

/// The part of a shard that the optimizer updates at a time (sub_group_size), in memory order.
using Tile = std::vector<GroupRanges>;

/// Divides the part of `flat` that this rank owns into tiles. tile_numel: largest number of
/// elements of a tile, rounded down to a multiple of `sharding::kAlignment` but at least that; 0:
/// one tile. groups: group number of each parameter. Gaps between parameters are in no range.
std::vector<Tile> plan_updates(const sharding::FlatParameter& flat,
                               std::span<const std::size_t> groups, std::int64_t tile_numel);

}  // namespace acc::optim
