// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/flat_layout.hpp"

#include "acc/base/error.hpp"

#include <algorithm>

// How ZeRO lays parameters out, for N ranks.
//
// Stages 1 and 2: the parameters of a group follow each other in one flat array, in the order of
// param_shapes, each followed by param_alignment_paddings elements (usually none). Zeros extend the
// array to a multiple of 2N elements. Rank r has the r-th of N equal partitions. A parameter may
// span any number of ranks. In the files the last rank's fp32 partition has lost the zeros at its
// end, but its moments keep them.
//
// Stage 3: every parameter is cut by itself into N parts of p = ceil(numel / N) elements; the last
// parts are padded with zeros. A rank's parts of all parameters, over all groups, follow each
// other. They are stored as several flat arrays (sub-groups), which have the same sizes on all
// ranks. DeepSpeed ends a sub-group with a whole part; this code does not rely on that.
namespace acc::checkpoint::deepspeed {

namespace {

/// Splits the range [begin, end) over arrays that lie end to end. `begins` holds the begin of each
/// array and the end of the last one. Calls visit(array, at, numel) per part.
template <typename Visit>
void for_each_part(const std::vector<std::int64_t>& begins, std::int64_t begin, std::int64_t end,
                   const Visit& visit) {
  auto array = static_cast<std::size_t>(std::ranges::upper_bound(begins, begin) - begins.begin());
  for (--array; begin < end; ++array) {
    const std::int64_t numel = std::min(end, begins[array + 1]) - begin;
    if (numel > 0) {
      visit(array, begin - begins[array], numel);
      begin += numel;
    }
  }
}

[[noreturn]] void fail_short(const std::string& where, const std::string& name, const Shape& shape,
                             std::int64_t begin, std::int64_t available) {
  throw Error(Errc::config, where + ": parameter " + name + " of shape " + to_string(shape) +
                                " begins at element " + std::to_string(begin) +
                                " of the flat group, which has " + std::to_string(available));
}

// Returns the begin of each array, and the end of the last one.
std::vector<std::int64_t> begins_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> begins = {0};
  for (const std::int64_t size : sizes) {
    begins.push_back(begins.back() + size);
  }
  return begins;
}

std::int64_t aligned(std::int64_t numel, std::int64_t to) {
  return partition_numel(numel, to) * to;
}

}  // namespace

std::vector<std::vector<FlatRun>> group_runs(const NamedShapes& group, std::size_t flat,
                                             const FlatSizes& sizes,
                                             const std::vector<std::int64_t>& paddings,
                                             const std::string& where) {
  if (!paddings.empty() && paddings.size() != group.size()) {
    throw Error(Errc::config, where + ": flat group " + std::to_string(flat) + " has " +
                                  std::to_string(group.size()) + " parameters, and " +
                                  std::to_string(paddings.size()) + " param_alignment_paddings");
  }
  std::vector<std::int64_t> of_ranks;
  for (const auto& rank : sizes) {
    of_ranks.push_back(rank[flat]);
  }
  const std::vector<std::int64_t> begins = begins_of(of_ranks);
  const std::int64_t available = begins.back();
  std::int64_t at = 0;
  std::vector<std::vector<FlatRun>> result;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int64_t numel = numel_of(group[i].second);
    if (at > available || numel > available - at) {
      fail_short(where, group[i].first, group[i].second, at, available);
    }
    std::vector<FlatRun>& runs = result.emplace_back();
    std::int64_t begin = 0;
    for_each_part(begins, at, at + numel,
                  [&](std::size_t rank, std::int64_t in_flat, std::int64_t part) {
                    runs.push_back({begin, part, rank, flat, in_flat});
                    begin += part;
                  });
    at += numel;
    // The minimum only prevents an overflow by a padding that is larger than the group.
    if (!paddings.empty()) {
      at += std::min(paddings[i], available + 1);
    }
  }
  // The sizes of the files do not include the zeros at the end of the last partition, so both sides
  // are compared after rounding up to 2N.
  const auto unit = 2 * static_cast<std::int64_t>(sizes.size());
  if (aligned(at, unit) != aligned(available, unit)) {
    throw Error(Errc::config, where + ": the parameters of flat group " + std::to_string(flat) +
                                  " have " + std::to_string(at) +
                                  " elements, but the optimizer's files have " +
                                  std::to_string(available));
  }
  return result;
}

std::vector<std::vector<FlatRun>> partitioned_runs(const NamedShapes& parameters,
                                                   const FlatSizes& sizes,
                                                   const std::string& where) {
  const auto ranks = static_cast<std::int64_t>(sizes.size());
  const std::vector<std::int64_t> begins = begins_of(sizes.front());
  const std::int64_t available = begins.back();
  std::int64_t at = 0;
  std::vector<std::vector<FlatRun>> result;
  for (const auto& [name, shape] : parameters) {
    const std::int64_t numel = numel_of(shape);
    const std::int64_t part = partition_numel(numel, ranks);
    if (part > available - at) {
      fail_short(where, name, shape, at, available);
    }
    std::vector<FlatRun>& runs = result.emplace_back();
    for (std::int64_t rank = 0; rank < ranks && rank * part < numel; ++rank) {
      std::int64_t begin = rank * part;
      const std::int64_t end = std::min(begin + part, numel);
      for_each_part(
          begins, at, at + end - begin,
          [&](std::size_t flat, std::int64_t in_flat, std::int64_t length) {
            runs.push_back({begin, length, static_cast<std::size_t>(rank), flat, in_flat});
            begin += length;
          });
    }
    at += part;
  }
  if (at != available) {
    throw Error(Errc::config, where + ": the parameters have " + std::to_string(at) +
                                  " elements per rank, but the optimizer's files have " +
                                  std::to_string(available));
  }
  return result;
}

}  // namespace acc::checkpoint::deepspeed
