// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/dcp/folder_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace acc::test {

struct Table {
  std::vector<checkpoint::dcp::PlannedTensor> tensors;
  std::vector<checkpoint::dcp::CutArray> arrays;
};

/// Returns units of a few tensors of any shapes, their moments, a tied name, and rank 0's buffer.
inline Table random_table(std::mt19937& generator, int shards) {
  using checkpoint::Dtype;
  static constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f64, Dtype::u8};
  Table table;
  const auto add = [&](checkpoint::Shape shape, Dtype dtype) {
    const std::string name = "t" + std::to_string(table.tensors.size());
    table.tensors.push_back({.name = "model." + name,
                             .path = {"model", name},
                             .dtype = dtype,
                             .shape = std::move(shape)});
  };
  for (std::uint32_t unit = 0; unit < 1 + generator() % 3; ++unit) {
    checkpoint::dcp::CutArray array{.members = {}, .shards = shards};
    const Dtype dtype = kDtypes[generator() % 4];
    std::int64_t numel = 0;
    for (std::uint32_t i = 0; i < 1 + generator() % 4; ++i) {
      checkpoint::Shape shape(generator() % 4);
      std::ranges::generate(shape, [&] { return static_cast<std::int64_t>(generator() % 9); });
      array.members.push_back({.tensor = table.tensors.size(), .offset = numel});
      numel += checkpoint::numel_of(shape) + generator() % 3;  // gaps, as alignment leaves them
      add(shape, dtype);
    }
    array.members.push_back({.tensor = table.tensors.size(), .offset = 0});
    add(table.tensors[array.members[0].tensor].shape, dtype);
    array.padded_numel = (numel + shards - 1) / shards * shards;
    table.arrays.push_back(array);
  }
  table.arrays.push_back({.members = {{.tensor = table.tensors.size(), .offset = 2}},
                          .padded_numel = 12,
                          .rank_zero_only = true});
  add({5, 2}, Dtype::f32);
  std::ranges::reverse(table.arrays);
  return table;
}

}  // namespace acc::test
