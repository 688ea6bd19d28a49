// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Plans which parts of a checkpoint go to which flat array of a DeepSpeed checkpoint. Pure.
namespace acc::checkpoint::deepspeed {

/// A stretch of a flat array: elements of a tensor, or zeros if there is no tensor.
struct FlatPart {
  const StoredTensor* tensor = nullptr;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};
using FlatParts = std::vector<FlatPart>;

/// A parameter group: its trained parameters in the order of the flat array.
struct ExportGroup {
  StoredGroup stored;
  std::vector<const StoredTensor*> parameters;
  std::int64_t numel = 0;
};

struct ExportPlan {
  std::vector<ExportGroup> groups;
  std::vector<const StoredTensor*> frozen;                  ///< parameters in no group
  std::vector<const StoredTensor*> buffers;                 ///< known ones, and what is not real
  std::vector<std::pair<std::string, std::string>> shared;  ///< second name, first name
  std::vector<std::string> kinds;                           ///< kinds of moments
};

/// Plans the groups as they were in training, or one group of all weights if that is unknown. Names
/// that share their bytes become one parameter. Throws Error(config) if a parameter of a group does
/// not exist.
ExportPlan plan_export(const Catalog& catalog, const TrainingState& training);
/// Returns the names of all parameters that have master weights, also those of tied ones.
std::set<std::string> names_of_masters(const ExportPlan& plan);

/// Stages 1 and 2: a rank has elements [rank * p, (rank + 1) * p) of a group's flat array, with p =
/// 2 * ceil(numel / 2N). group_partition returns p. `kind` is "param" or a kind of moment;
/// parameters without that moment get zeros.
std::int64_t group_partition(std::int64_t numel, int ranks) noexcept;
FlatParts group_part(const ExportGroup& group, const Catalog& catalog, const std::string& kind,
                     int rank, int ranks);
/// Stage 3: a rank has elements [rank * p, (rank + 1) * p) of every parameter, with p = ceil(numel
/// / N).
FlatParts partitioned_part(const ExportGroup& group, const Catalog& catalog,
                           const std::string& kind, int rank, int ranks);
/// The part of one tensor in stage 3.
FlatParts tensor_part(const StoredTensor* tensor, std::int64_t numel, int rank, int ranks);

std::int64_t total_numel(const FlatParts& parts) noexcept;

}  // namespace acc::checkpoint::deepspeed
