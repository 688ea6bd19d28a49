// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/export_plan.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/tensor/box.hpp"
#include "deepspeed/flat_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

// Decides which stretch of which tensor goes to which flat array. docs/formats/deepspeed.md shows
// the layout of both kinds of flat arrays; flat_layout.cpp reads it.
namespace acc::checkpoint::deepspeed {

namespace {

// Adds a group. The second name of a tied parameter goes to the shared names, because DeepSpeed
// stores the parameter once.
void add_group(ExportPlan& plan, const StoredGroup& stored, const Catalog& catalog,
               const std::string& where, SharedBytes& distinct, std::set<std::string>& placed) {
  ExportGroup group{.stored = stored, .parameters = {}};
  for (const std::string& name : stored.parameters) {
    const StoredTensor& tensor = catalog.at(name, "param", where);
    if (!placed.insert(name).second) {
      throw Error(Errc::config, fmt::format("{}: parameter {} is in two groups", where, name));
    }
    if (const StoredTensor* const other = distinct.other(tensor)) {
      plan.shared.emplace_back(name, other->name);
      continue;
    }
    group.parameters.push_back(&tensor);
    group.numel += numel_of(tensor.shape);
  }
  group.stored.parameters.clear();
  plan.groups.push_back(std::move(group));
}

/// Returns all weights as one group, for a checkpoint that does not say what was trained.
StoredGroup all_weights(const Catalog& catalog, const std::set<std::string>& buffers) {
  StoredGroup group;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (tensor.kind == "param" && is_real(tensor.dtype) && !buffers.contains(tensor.name)) {
      group.parameters.push_back(tensor.name);
    }
  }
  return group;
}

/// DeepSpeed's files hold states in flat arrays, in the places of their parameters.
void check_state(const StoredTensor& state, const StoredTensor* parameter,
                 const std::string& where) {
  if (parameter != nullptr && state.shape != parameter->shape) {
    throw Error(
        Errc::not_supported,
        fmt::format("{}: the state {} of {} has shape {}, and the parameter {}: DeepSpeed's "
                    "files hold states of the shape of their parameter only; use another format",
                    where, state.kind, state.name, to_string(state.shape),
                    to_string(parameter->shape)));
  }
}

const StoredTensor* of_kind(const StoredTensor& parameter, const Catalog& catalog,
                            const std::string& kind) {
  return kind == "param" ? &parameter : catalog.find(parameter.name, kind);
}

}  // namespace

ExportPlan plan_export(const Catalog& catalog, const TrainingState& training) {
  const std::string where = "export for DeepSpeed";
  ExportPlan plan;
  SharedBytes distinct;
  std::set<std::string> placed;
  const bool has_names = std::ranges::any_of(
      training.groups, [](const StoredGroup& group) { return !group.parameters.empty(); });
  if (has_names) {
    for (const StoredGroup& group : training.groups) {
      add_group(plan, group, catalog, where, distinct, placed);
    }
  } else {
    add_group(plan, all_weights(catalog, training.buffers), catalog, where, distinct, placed);
  }
  std::set<std::string> kinds;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (tensor.kind == "step" || tensor.kind == "group") {
      continue;
    }
    if (!tensor.is_weight()) {
      check_state(tensor, catalog.find(tensor.name, "param"), where);
      kinds.insert(tensor.kind);
    } else if (!placed.contains(tensor.name)) {
      if (const StoredTensor* const other = distinct.other(tensor)) {
        plan.shared.emplace_back(tensor.name, other->name);
      } else {
        const bool is_buffer = !is_real(tensor.dtype) || training.buffers.contains(tensor.name);
        (is_buffer ? plan.buffers : plan.frozen).push_back(&tensor);
      }
    }
  }
  plan.kinds.assign(kinds.begin(), kinds.end());
  return plan;
}

std::set<std::string> names_of_masters(const ExportPlan& plan) {
  std::set<std::string> names;
  for (const ExportGroup& group : plan.groups) {
    for (const StoredTensor* const parameter : group.parameters) {
      names.insert(parameter->name);
    }
  }
  for (const auto& [second, name] : plan.shared) {
    if (names.contains(name)) {
      names.insert(second);
    }
  }
  return names;
}

std::int64_t group_partition(std::int64_t numel, int ranks) noexcept {
  return partition_numel(numel, 2 * std::int64_t{ranks}) * 2;
}

// Walks the group's parameters as one long array and keeps what lies in the rank's partition.
FlatParts group_part(const ExportGroup& group, const Catalog& catalog, const std::string& kind,
                     int rank, int ranks) {
  const std::int64_t size = group_partition(group.numel, ranks);
  const std::int64_t begin = size * rank;
  const std::int64_t end = begin + size;
  FlatParts parts;
  std::int64_t at = 0;
  for (const StoredTensor* parameter : group.parameters) {
    const std::int64_t numel = numel_of(parameter->shape);
    const std::int64_t from = std::max(begin, at);
    const std::int64_t to = std::min(end, at + numel);
    if (from < to) {
      parts.push_back({of_kind(*parameter, catalog, kind), from - at, to - from});
    }
    at += numel;
  }
  // DeepSpeed removes the padding at the end from the saved weights, but not from their moments.
  if (const std::int64_t gap = size - total_numel(parts); kind != "param" && gap > 0) {
    parts.push_back({nullptr, 0, gap});
  }
  return parts;
}

// Stage 3 pads the part of every single parameter, so each part is followed by its own zeros.
FlatParts tensor_part(const StoredTensor* tensor, std::int64_t numel, int rank, int ranks) {
  const std::int64_t size = partition_numel(numel, ranks);
  const std::int64_t begin = std::min(size * rank, numel);
  const std::int64_t end = std::min(begin + size, numel);
  FlatParts parts;
  if (begin < end) {
    parts.push_back({tensor, begin, end - begin});
  }
  if (const std::int64_t gap = size - (end - begin); gap > 0) {
    parts.push_back({nullptr, 0, gap});
  }
  return parts;
}

FlatParts partitioned_part(const ExportGroup& group, const Catalog& catalog,
                           const std::string& kind, int rank, int ranks) {
  FlatParts parts;
  for (const StoredTensor* parameter : group.parameters) {
    const FlatParts of_tensor =
        tensor_part(of_kind(*parameter, catalog, kind), numel_of(parameter->shape), rank, ranks);
    parts.insert(parts.end(), of_tensor.begin(), of_tensor.end());
  }
  return parts;
}

std::int64_t total_numel(const FlatParts& parts) noexcept {
  std::int64_t numel = 0;
  for (const FlatPart& part : parts) {
    numel += part.numel;
  }
  return numel;
}

}  // namespace acc::checkpoint::deepspeed
