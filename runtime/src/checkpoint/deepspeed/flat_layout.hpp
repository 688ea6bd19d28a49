#pragma once

#include "checkpoint/deepspeed/module_states.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// Where ZeRO puts parameters in the ranks' flat arrays. Pure arithmetic.
namespace acc::checkpoint::deepspeed {

/// Elements [begin, begin + numel) of a parameter lie in flat number `flat` of a rank, from `at`.
struct FlatRun {
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::size_t rank = 0;
  std::size_t flat = 0;
  std::int64_t at = 0;
  bool operator==(const FlatRun&) const = default;
};

/// Elements of every rank's flats: [rank][flat].
using FlatSizes = std::vector<std::vector<std::int64_t>>;

/// Stages 1 and 2: the parameters of a group one after the other, cut among the ranks. `paddings`:
/// elements after each, or empty. Runs of each parameter, in the order of `group`. Throws
/// Error(config) that begins with `where` and names the parameter that does not fit.
std::vector<std::vector<FlatRun>> group_runs(const NamedShapes& group, std::size_t flat,
                                             const FlatSizes& sizes,
                                             const std::vector<std::int64_t>& paddings,
                                             const std::string& where);

/// Stage 3: every parameter cut among the ranks, the parts one after the other through all flats of
/// a rank, whose sizes are the same everywhere.
std::vector<std::vector<FlatRun>> partitioned_runs(const NamedShapes& parameters,
                                                   const FlatSizes& sizes,
                                                   const std::string& where);

/// ceil(numel / ranks): what of a parameter a rank has in stage 3.
constexpr std::int64_t partition_numel(std::int64_t numel, std::int64_t ranks) noexcept {
  return numel / ranks + (numel % ranks != 0 ? 1 : 0);
}

}  // namespace acc::checkpoint::deepspeed
