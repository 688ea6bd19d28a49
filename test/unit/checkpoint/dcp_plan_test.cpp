// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/dcp/folder_plan.hpp"
#include "random_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using namespace acc::checkpoint::dcp;
using acc::test::random_table;
using acc::test::Table;

namespace {

PlannedTensor tensor(Shape shape, Dtype dtype = Dtype::f32) {
  return {.name = "t", .path = {}, .dtype = dtype, .shape = std::move(shape)};
}

/// Returns what all ranks write, by tensor, and checks that both queries agree.
using Written = std::vector<std::vector<std::pair<int, PlannedChunk>>>;
Written written_by_all(const CutRule& rule, std::size_t tensors, int world_size) {
  Written written(tensors);
  std::map<int, std::vector<PlannedChunk>> by_rank;
  for (std::size_t i = 0; i < tensors; ++i) {
    rule.for_each_chunk(i, [&](int rank, const PlannedChunk& chunk) {
      CHECK(chunk.tensor == i);
      written[i].emplace_back(rank, chunk);
      by_rank[rank].push_back(chunk);
    });
  }
  for (int rank = 0; rank < world_size; ++rank) {
    CHECK(rule.chunks(rank) == by_rank[rank]);
  }
  CHECK(std::ranges::all_of(by_rank, [&](const auto& item) { return item.first < world_size; }));
  return written;
}

std::string fault_of(const PlannedTensor& tensor,
                     const std::vector<std::pair<int, PlannedChunk>>& written) {
  std::vector<Box> boxes;
  for (const auto& [rank, chunk] : written) {
    boxes.push_back(chunk.box);
  }
  return cover_fault(tensor.shape, boxes);
}

std::vector<std::int64_t> nbytes_of_ranks(const CutRule& rule, const Table& table, int world_size) {
  std::vector<std::int64_t> nbytes;
  for (int rank = 0; rank < world_size; ++rank) {
    std::int64_t sum = 0;
    for (const PlannedChunk& chunk : rule.chunks(rank)) {
      sum +=
          chunk.box.numel() * static_cast<std::int64_t>(size_of(table.tensors[chunk.tensor].dtype));
    }
    nbytes.push_back(sum);
  }
  return nbytes;
}

}  // namespace

TEST_CASE("each element of an array is written once, by a rank that holds it, from its place") {
  std::mt19937 generator(1);
  for (int world_size = 1; world_size <= 9; ++world_size) {
    for (int shards = 1; shards <= world_size; ++shards) {
      if (world_size % shards != 0) {
        continue;
      }
      for (int round = 0; round < 8; ++round) {
        const Table table = random_table(generator, shards);
        CAPTURE(world_size);
        CAPTURE(shards);
        const auto rule = cut_arrays(table.arrays, table.tensors, world_size);
        const Written written = written_by_all(*rule, table.tensors.size(), world_size);
        for (std::size_t a = 0; a < table.arrays.size(); ++a) {
          const CutArray& array = table.arrays[a];
          for (const CutArray::Member& member : array.members) {
            const PlannedTensor& planned = table.tensors[member.tensor];
            CHECK(fault_of(planned, written[member.tensor]) == "");
            for (const auto& [rank, chunk] : written[member.tensor]) {
              const std::int64_t numel = chunk.box.numel();
              CHECK(chunk.source == a);
              if (numel == 0) {
                CHECK(rank == 0);
                continue;
              }
              const auto first = element_in_tensor(planned.shape, chunk.box, 0);
              CHECK(element_in_tensor(planned.shape, chunk.box, numel - 1) == first + numel - 1);
              CHECK(chunk.source_begin == member.offset + first);
              if (array.rank_zero_only) {
                CHECK(rank == 0);
                continue;
              }
              const std::int64_t shard_begin = array.padded_numel / shards * (rank % shards);
              CHECK(chunk.source_begin >= shard_begin);
              CHECK(chunk.source_begin + numel <= shard_begin + array.padded_numel / shards);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("replicas write equal parts in few pieces") {
  // 2 units of 3 tensors with moments of another dtype; 4 shards, 6 replicas.
  Table table;
  for (int unit = 0; unit < 2; ++unit) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32, Dtype::f32}) {
      CutArray array{.members = {}, .shards = 4};
      for (const Shape& shape : {Shape{300, 64}, Shape{64}, Shape{64, 1000}}) {
        array.members.push_back({table.tensors.size(), array.padded_numel});
        array.padded_numel += numel_of(shape);
        table.tensors.push_back(tensor(shape, dtype));
      }
      table.arrays.push_back(array);
    }
  }
  constexpr int kWorld = 24;
  const auto rule = cut_arrays(table.arrays, table.tensors, kWorld);
  const auto nbytes = nbytes_of_ranks(*rule, table, kWorld);
  const std::int64_t equal =
      std::accumulate(nbytes.begin(), nbytes.end(), std::int64_t{0}) / kWorld;
  for (const std::int64_t rank_nbytes : nbytes) {
    CHECK(std::abs(rank_nbytes - equal) <= equal / 32 + 16);
  }
  std::size_t chunks = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    chunks += rule->chunks(rank).size();
  }
  // A shard of an array begins and ends within a row, which gives 3 boxes. The borders between
  // replicas are at ends of rows.
  CHECK(chunks <= 4 * (6 * 4) + 24 + 6 * 3);
}

TEST_CASE("a part that is larger than a row ends with a row") {
  const std::vector<PlannedTensor> tensors = {tensor({1000, 10}), tensor({10, 7, 100})};
  const std::vector<CutArray> arrays = {
      {.members = {{0, 0}, {1, 10'000}}, .padded_numel = 17'000, .shards = 1}};
  const auto rule = cut_arrays(arrays, tensors, 10);
  for (int rank = 0; rank < 10; ++rank) {
    for (const PlannedChunk& chunk : rule->chunks(rank)) {
      CAPTURE(to_string(chunk.box));
      CHECK((chunk.tensor != 0 || chunk.box.sizes[1] == 10));
    }
  }
}

TEST_CASE("rows are cut as FSDP does, including the first empty share") {
  struct Case {
    Shape shape;
    int world_size;
    std::vector<Shape> offsets, sizes;
  };
  const Case cases[] = {
      {{2, 26}, 3, {{0, 0}, {1, 0}, {2, 0}}, {{1, 26}, {1, 26}, {0, 26}}},
      {{2}, 5, {{0}, {1}, {2}}, {{1}, {1}, {0}}},
      {{30, 3}, 4, {{0, 0}, {8, 0}, {16, 0}, {24, 0}}, {{8, 3}, {8, 3}, {8, 3}, {6, 3}}},
      {{}, 4, {{}}, {{}}},
      {{0, 3}, 2, {{0, 0}}, {{0, 3}}},
      {{3, 0}, 2, {{0, 0}}, {{2, 0}}},
  };
  for (const Case& c : cases) {
    CAPTURE(to_string(c.shape));
    const std::vector<PlannedTensor> tensors = {tensor({7}), tensor(c.shape)};
    const auto rule = cut_by_rows(tensors, c.world_size);
    const Written written = written_by_all(*rule, tensors.size(), c.world_size);
    std::vector<Shape> offsets, sizes;
    for (const auto& [rank, chunk] : written[1]) {
      CHECK(rank == static_cast<int>(offsets.size()));
      CHECK(chunk.source == 1);
      offsets.push_back(chunk.box.offsets);
      sizes.push_back(chunk.box.sizes);
      if (chunk.box.numel() > 0) {
        CHECK(chunk.source_begin == element_in_tensor(c.shape, chunk.box, 0));
      }
    }
    CHECK(offsets == c.offsets);
    CHECK(sizes == c.sizes);
    CHECK(fault_of(tensors[1], written[1]) == "");
  }
}

TEST_CASE("inconsistent arrays are refused") {
  struct Case {
    const char* message;
    std::vector<CutArray> arrays;
  };
  const std::vector<PlannedTensor> tensors = {tensor({4}), tensor({2})};
  const Case cases[] = {
      {"an array of 6 elements cannot be cut into 4 equal shards for 4 ranks",
       {{.members = {{0, 0}, {1, 4}}, .padded_numel = 6, .shards = 4}}},
      {"an array of 6 elements cannot be cut into 3 equal shards for 4 ranks",
       {{.members = {{0, 0}, {1, 4}}, .padded_numel = 6, .shards = 3}}},
      {"tensor number 1 does not lie in its array",
       {{.members = {{0, 0}, {1, 3}}, .padded_numel = 4, .shards = 2}}},
      {"tensor number 1 is in 0 arrays, expected one",
       {{.members = {{0, 0}}, .padded_numel = 4, .shards = 2}}},
      {"tensor number 0 is in 2 arrays, expected one",
       {{.members = {{0, 0}, {1, 4}, {0, 0}}, .padded_numel = 8, .shards = 2}}},
  };
  for (const Case& c : cases) {
    CHECK_THROWS_WITH_AS(cut_arrays(c.arrays, tensors, 4), c.message, acc::Error);
  }
}
