// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deepspeed/module_states.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// Positions of parameters in the flat arrays of ZeRO's ranks. Pure arithmetic.
namespace acc::checkpoint::deepspeed {

/// Elements [begin, begin + numel) of a parameter lie in flat array number `flat` of a rank, from
/// its element `at` on.
struct FlatRun {
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::size_t rank = 0;
  std::size_t flat = 0;
  std::int64_t at = 0;
  bool operator==(const FlatRun&) const = default;
};

/// Number of elements of every rank's flat arrays: [rank][flat].
using FlatSizes = std::vector<std::vector<std::int64_t>>;

/// Stages 1 and 2: places the parameters of a group one after the other and cuts the result among
/// the ranks. `paddings`: elements after each parameter, or empty. Returns the runs of each
/// parameter, in the order of `group`. Throws Error(config) that begins with `where` and names the
/// parameter that does not fit.
std::vector<std::vector<FlatRun>> group_runs(const NamedShapes& group, std::size_t flat,
                                             const FlatSizes& sizes,
                                             const std::vector<std::int64_t>& paddings,
                                             const std::string& where);

/// Stage 3: cuts every parameter among the ranks, and places a rank's parts one after the other
/// through all its flat arrays, whose sizes are the same on all ranks.
std::vector<std::vector<FlatRun>> partitioned_runs(const NamedShapes& parameters,
                                                   const FlatSizes& sizes,
                                                   const std::string& where);

/// Returns ceil(numel / ranks): the elements of a parameter that a rank has in stage 3.
constexpr std::int64_t partition_numel(std::int64_t numel, std::int64_t ranks) noexcept {
  return numel / ranks + (numel % ranks != 0 ? 1 : 0);
}

}  // namespace acc::checkpoint::deepspeed
