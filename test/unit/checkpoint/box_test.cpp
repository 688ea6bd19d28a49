// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/tensor/box.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace acc::checkpoint;

namespace {

Shape random_shape(std::mt19937& generator, int min_extent) {
  Shape shape(generator() % 5);
  for (std::int64_t& extent : shape) {
    extent = min_extent + static_cast<std::int64_t>(generator() % 4);
  }
  return shape;
}

Box random_box(std::mt19937& generator, const Shape& shape) {
  Box box = whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto extent = static_cast<std::uint32_t>(shape[d]);
    box.offsets[d] = generator() % (extent + 1);
    box.sizes[d] = generator() % (extent + 1 - static_cast<std::uint32_t>(box.offsets[d]));
  }
  return box;
}

/// Returns the numbers in the tensor of a box's elements, in the order of the box.
std::vector<std::int64_t> elements_of(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> elements = {0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> finer;
    for (const std::int64_t element : elements) {
      for (std::int64_t i = 0; i < box.sizes[d]; ++i) {
        finer.push_back(element * shape[d] + box.offsets[d] + i);
      }
    }
    elements = std::move(finer);
  }
  return elements;
}

struct Run {
  std::int64_t in_first, in_second, numel;
  bool operator==(const Run&) const = default;
};

/// Returns the runs of the elements that two rising lists share.
std::vector<Run> common_runs(const std::vector<std::int64_t>& first,
                             const std::vector<std::int64_t>& second) {
  std::vector<Run> runs;
  std::size_t j = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    while (j < second.size() && second[j] < first[i]) {
      ++j;
    }
    if (j == second.size() || second[j] != first[i]) {
      continue;
    }
    const Run one = {static_cast<std::int64_t>(i), static_cast<std::int64_t>(j), 1};
    const bool goes_on = !runs.empty() &&
                         runs.back().in_first + runs.back().numel == one.in_first &&
                         runs.back().in_second + runs.back().numel == one.in_second;
    if (goes_on) {
      ++runs.back().numel;
    } else {
      runs.push_back(one);
    }
  }
  return runs;
}

/// Returns every box of a shape that has elements.
std::vector<Box> all_boxes(const Shape& shape) {
  std::vector<Box> boxes = {Box{}};
  for (const std::int64_t extent : shape) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (std::int64_t begin = 0; begin < extent; ++begin) {
        for (std::int64_t end = begin + 1; end <= extent; ++end) {
          longer.push_back(box);
          longer.back().offsets.push_back(begin);
          longer.back().sizes.push_back(end - begin);
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

/// Returns the fewest contiguous boxes that make up each range, by trying all.
class FewestBoxes {
 public:
  explicit FewestBoxes(const Shape& shape) {
    for (const Box& box : all_boxes(shape)) {
      const auto elements = elements_of(shape, box);
      if (elements.back() - elements.front() + 1 == box.numel()) {
        contiguous_.emplace(elements.front(), elements.back() + 1);
      }
    }
  }
  [[nodiscard]] std::size_t operator()(std::int64_t begin, std::int64_t end) const {
    std::vector<std::size_t> fewest(static_cast<std::size_t>(end - begin + 1), 1000);
    fewest[0] = 0;
    for (std::int64_t at = begin; at < end; ++at) {
      const auto [first, last] = contiguous_.equal_range(at);
      for (auto box = first; box != last; ++box) {
        if (box->second <= end) {
          auto& there = fewest[static_cast<std::size_t>(box->second - begin)];
          there = std::min(there, fewest[static_cast<std::size_t>(at - begin)] + 1);
        }
      }
    }
    return fewest.back();
  }

 private:
  std::multimap<std::int64_t, std::int64_t> contiguous_;
};

}  // namespace

TEST_CASE("a range becomes the fewest boxes, in order") {
  std::mt19937 generator(1);
  for (int round = 0; round < 60; ++round) {
    const Shape shape = random_shape(generator, 1);
    CAPTURE(to_string(shape));
    const FewestBoxes fewest(shape);
    const std::int64_t numel = numel_of(shape);
    for (int i = 0; i < 20; ++i) {
      const auto begin = static_cast<std::int64_t>(generator() % static_cast<unsigned>(numel + 1));
      const auto end =
          begin + static_cast<std::int64_t>(generator() % static_cast<unsigned>(numel - begin + 1));
      const auto boxes = boxes_of_range(shape, begin, end);
      std::int64_t next = begin;
      for (const Box& box : boxes) {
        for (const std::int64_t element : elements_of(shape, box)) {
          REQUIRE(element == next++);
        }
      }
      REQUIRE(next == end);
      REQUIRE(boxes.size() == fewest(begin, end));
      REQUIRE(boxes.size() <= (shape.empty() ? 1 : 2 * shape.size() - 1));
    }
  }
  CHECK(boxes_of_range({0, 3}, 0, 0).empty());
  CHECK(boxes_of_range({}, 0, 1) == std::vector<Box>{Box{}});
  CHECK_THROWS_AS(boxes_of_range({2, 3}, 0, 7), acc::Error);
  CHECK_THROWS_AS(boxes_of_range({2, 3}, -1, 2), acc::Error);
}

TEST_CASE("runs of a box in a range or a box: every element once, in the longest runs") {
  std::mt19937 generator(2);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(generator, 0);
    const Box box = random_box(generator, shape);
    const std::int64_t numel = numel_of(shape);
    const auto begin = static_cast<std::int64_t>(generator() % static_cast<unsigned>(numel + 1));
    const auto end =
        begin + static_cast<std::int64_t>(generator() % static_cast<unsigned>(numel - begin + 1));
    CAPTURE(to_string(shape));
    CAPTURE(to_string(box));
    std::vector<std::int64_t> range(static_cast<std::size_t>(end - begin));
    std::iota(range.begin(), range.end(), begin);
    std::vector<Run> found;
    const VisitRun note = [&](std::int64_t in_first, std::int64_t in_second, std::int64_t count) {
      found.push_back({in_first, in_second, count});
    };
    for_each_run(shape, box, begin, end, note);
    const auto elements = elements_of(shape, box);
    REQUIRE(found == common_runs(elements, range));
    found.clear();
    const Box other = random_box(generator, shape);
    for_each_run(box, other, note);
    REQUIRE(found == common_runs(elements, elements_of(shape, other)));
    for (std::size_t i = 0; i < elements.size(); ++i) {
      REQUIRE(element_in_tensor(shape, box, static_cast<std::int64_t>(i)) == elements[i]);
    }
  }
}

TEST_CASE("only the rows that a range touches are visited") {
  int visits = 0;
  const std::int64_t rows = std::int64_t{1} << 40;
  for_each_run({rows, 4}, {{0, 1}, {rows, 2}}, 4 * (rows - 2), 4 * rows,
               [&](std::int64_t in_box, std::int64_t in_range, std::int64_t numel) {
                 CHECK(in_box == 2 * (rows - 2 + visits));
                 CHECK(in_range == 4 * visits + 1);
                 CHECK(numel == 2);
                 ++visits;
               });
  CHECK(visits == 2);
}

TEST_CASE("rows are cut as FSDP cuts them") {
  for (const std::int64_t rows : {0, 1, 2, 7, 8, 100}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::vector<Box> boxes;
      for (int rank = 0; rank < ranks; ++rank) {
        boxes.push_back(row_box({rows, 3}, rank, ranks).value());
        CHECK(boxes.back().sizes[1] == 3);
      }
      CHECK(boxes.front().sizes[0] == (rows + ranks - 1) / ranks);
      CHECK(cover_fault({rows, 3}, boxes).empty());
    }
  }
  // As torch writes it: with two rows, the third of three ranks has an empty box.
  CHECK(row_box({2, 26}, 2, 3) == Box{{2, 0}, {0, 26}});
  CHECK(row_box({}, 0, 4) == Box{});
  CHECK_FALSE(row_box({}, 1, 4));
}

TEST_CASE("lies_in is safe for any numbers") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  struct Row {
    Box box;
    Shape shape;
    bool lies;
  };
  const Row rows[] = {
      {{{0, 3}, {2, 3}}, {2, 6}, true},
      {{{2, 0}, {0, 6}}, {2, 6}, true},
      {{{}, {}}, {}, true},
      {{{3, 0}, {0, 6}}, {2, 6}, false},
      {{{1, 0}, {2, 6}}, {2, 6}, false},
      {{{-1, 0}, {1, 6}}, {2, 6}, false},
      {{{0, 0}, {-1, 6}}, {2, 6}, false},
      {{{kMax, 0}, {1, 6}}, {2, 6}, false},
      {{{1, 0}, {kMax, 6}}, {2, 6}, false},
      {{{kMax, 0}, {kMax, 6}}, {2, 6}, false},
      {{{0}, {2}}, {2, 6}, false},
      {{{0, 0}, {2}}, {2, 6}, false},
  };
  for (const Row& row : rows) {
    CHECK(lies_in(row.box, row.shape) == row.lies);
  }
}

TEST_CASE("shapes with too many elements are refused") {
  const std::int64_t big = std::int64_t{1} << 32;
  check_shape({}, "x");
  check_shape({0, 5}, "x");
  check_shape({big, big / 4}, "x");
  CHECK_THROWS_WITH_AS(check_shape({2, -1}, "a.bin: tensor 'w'"),
                       "a.bin: tensor 'w': shape [2, -1] has a negative extent", acc::Error);
  CHECK_THROWS_WITH_AS(check_shape({big, big}, "x"), doctest::Contains("more elements"),
                       acc::Error);
  CHECK_THROWS_WITH_AS(check_shape({0, big, big}, "x"), doctest::Contains("more elements"),
                       acc::Error);
  CHECK_THROWS_WITH_AS(check_shape(Shape(65, 1), "x"), doctest::Contains("found 65"), acc::Error);
}

TEST_CASE("covers: exact ones pass, holes and overlaps are named") {
  struct Row {
    Shape shape;
    std::vector<Box> boxes;
    const char* fault;
  };
  const Row rows[] = {
      {{}, {Box{}}, ""},
      {{}, {}, "box [] is in no piece"},
      {{}, {Box{}, Box{}}, "box [] and box [] overlap"},
      {{0, 3}, {}, ""},
      {{4}, {{{0}, {4}}}, ""},
      {{4}, {{{2}, {2}}, {{0}, {2}}, {{2}, {0}}}, ""},
      {{4, 2}, {{{0, 0}, {3, 2}}}, "rows 3:4 are in no piece"},
      {{4, 2}, {}, "rows 0:4 are in no piece"},
      {{4, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {2, 1}}}, "box [2:4, 1:2] is in no piece"},
      {{4, 2}, {{{0, 0}, {3, 2}}, {{2, 0}, {2, 2}}}, "box [0:3, 0:2] and box [2:4, 0:2] overlap"},
      {{4, 2}, {{{0, 0}, {5, 2}}}, "box [0:5, 0:2] does not lie in shape [4, 2]"},
      {{2, 2}, {{{0, 0}, {1, 2}}, {{1, 0}, {1, 1}}, {{1, 1}, {1, 1}}}, ""},
  };
  for (const Row& row : rows) {
    CHECK(cover_fault(row.shape, row.boxes) == row.fault);
  }
}

TEST_CASE("random covers: the check agrees with counting every element") {
  std::mt19937 generator(4);
  int exact = 0;
  for (int round = 0; round < 1000; ++round) {
    const Shape shape = random_shape(generator, 0);
    const std::int64_t numel = numel_of(shape);
    std::vector<Box> boxes;
    for (std::int64_t begin = 0; begin < numel;) {
      const auto end = std::min(numel, begin + 1 + static_cast<std::int64_t>(generator() % 9));
      std::ranges::move(boxes_of_range(shape, begin, end), std::back_inserter(boxes));
      begin = end;
    }
    std::ranges::shuffle(boxes, generator);
    switch (generator() % 4) {
      case 0: boxes.push_back(random_box(generator, shape)); break;
      case 1:
        if (!boxes.empty()) {
          boxes.pop_back();
        }
        break;
      default: break;
    }
    std::vector<int> counts(static_cast<std::size_t>(numel));
    for (const Box& box : boxes) {
      for (const std::int64_t element : elements_of(shape, box)) {
        ++counts[static_cast<std::size_t>(element)];
      }
    }
    const bool is_exact = std::ranges::all_of(counts, [](int count) { return count == 1; });
    exact += is_exact ? 1 : 0;
    CAPTURE(to_string(shape));
    REQUIRE(cover_fault(shape, boxes).empty() == is_exact);
  }
  CHECK(exact > 300);
  CHECK(exact < 900);
}

TEST_CASE("elements of strided tensors are gathered in row-major order") {
  struct Row {
    Shape shape, strides;
    std::int64_t stored;            ///< elements from the first to the last one
    std::vector<std::int16_t> all;  ///< the storage counts from 0
  };
  const Row rows[] = {
      {{2, 3}, {1, 2}, 6, {0, 2, 4, 1, 3, 5}},
      {{2, 3}, {}, 6, {0, 1, 2, 3, 4, 5}},
      {{1, 2, 2, 2}, {8, 1, 4, 2}, 8, {0, 2, 4, 6, 1, 3, 5, 7}},  // channels_last
      {{3}, {4}, 9, {0, 4, 8}},
      {{2, 2}, {0, 1}, 2, {0, 1, 0, 1}},
      {{}, {}, 1, {0}},
      {{0, 3}, {3, 1}, 0, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(to_string(row.shape));
    CHECK(stored_numel(row.shape, row.strides) == row.stored);
    std::vector<std::int16_t> storage(16);
    std::iota(storage.begin(), storage.end(), std::int16_t{0});
    if (row.strides.empty()) {
      continue;
    }
    const auto numel = std::ssize(row.all);
    for (std::int64_t begin = 0; begin < numel; ++begin) {
      std::vector<std::int16_t> found(static_cast<std::size_t>(numel - begin));
      gather_strided(reinterpret_cast<const std::byte*>(storage.data()), row.shape, row.strides, 2,
                     begin, numel - begin, reinterpret_cast<std::byte*>(found.data()));
      CHECK(std::ranges::equal(found, std::span(row.all).subspan(static_cast<std::size_t>(begin))));
    }
  }
  CHECK_FALSE(stored_numel({3, 2}, {INT64_MAX, 1}));
}
