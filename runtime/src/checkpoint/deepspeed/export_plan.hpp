#pragma once

#include "checkpoint/catalog/catalog.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// What of a checkpoint goes where when it is written for DeepSpeed. Pure.
namespace acc::checkpoint::deepspeed {

/// A stretch of a flat array: elements of a tensor, or zeros (no tensor).
struct FlatPart {
  const StoredTensor* tensor = nullptr;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};
using FlatParts = std::vector<FlatPart>;

/// A parameter group: what is trained, in the order of its flat array.
struct ExportGroup {
  StoredGroup stored;
  std::vector<const StoredTensor*> parameters;
  std::int64_t numel = 0;
};

struct ExportPlan {
  std::vector<ExportGroup> groups;
  std::vector<const StoredTensor*> frozen;                  ///< parameters of no group
  std::vector<const StoredTensor*> buffers;                 ///< what is known as one, or not real
  std::vector<std::pair<std::string, std::string>> shared;  ///< second name, name
  std::vector<std::string> kinds;                           ///< of moments
};

/// Groups as they were in training; where that is not known, one of all weights. Names that share
/// their bytes are one parameter. Throws Error(config) for a group's parameter that is not there.
ExportPlan plan_export(const Catalog& catalog, const TrainingState& training,
                       const std::string& where);

/// Stages 1 and 2: elements [rank * p, (rank + 1) * p) of a group's flat, p = ceil(numel / 2N) * 2.
/// `kind`: "param", or of moments; where a parameter has none, zeros.
std::int64_t group_partition(std::int64_t numel, int ranks) noexcept;
FlatParts group_part(const ExportGroup& group, const Catalog& catalog, const std::string& kind,
                     int rank, int ranks);
/// Stage 3: of every parameter elements [rank * p, (rank + 1) * p), p = ceil(numel / N).
FlatParts partitioned_part(const ExportGroup& group, const Catalog& catalog,
                           const std::string& kind, int rank, int ranks);
/// The same for one tensor.
FlatParts tensor_part(const StoredTensor* tensor, std::int64_t numel, int rank, int ranks);

std::int64_t numel_of(const FlatParts& parts) noexcept;

}  // namespace acc::checkpoint::deepspeed
