// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/convert.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "convert/output_set.hpp"
#include "convert/tiles.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <set>

using namespace acc::checkpoint;
using namespace acc::checkpoint::conversion;
using acc::test::names_in;
using acc::test::TemporaryFolder;

namespace fs = std::filesystem;

namespace {

StoredTensor tensor_of(Shape shape, const std::vector<Box>& boxes) {
  StoredTensor tensor;
  tensor.name = tensor.stored_name = "weight";
  tensor.shape = std::move(shape);
  for (const Box& box : boxes) {
    StoredPiece piece;
    piece.box = box;
    tensor.pieces.push_back(piece);
  }
  return tensor;
}

}  // namespace

TEST_CASE("range_of: the range of a contiguous box, or nothing") {
  struct Case {
    Shape shape;
    Box box;
    std::optional<std::pair<std::int64_t, std::int64_t>> range;
  };
  const Case cases[] = {
      {{}, {{}, {}}, {{0, 1}}},
      {{7}, {{2}, {3}}, {{2, 5}}},
      {{4, 5}, {{1, 0}, {2, 5}}, {{5, 15}}},
      {{4, 5}, {{1, 2}, {1, 3}}, {{7, 10}}},
      {{4, 5}, {{1, 2}, {2, 3}}, {}},
      {{4, 5}, {{0, 0}, {4, 2}}, {}},
      {{2, 3, 4}, {{1, 1, 0}, {1, 2, 4}}, {{16, 24}}},
      {{2, 3, 4}, {{0, 1, 0}, {2, 2, 4}}, {}},
      {{2, 3, 4}, {{1, 2, 1}, {1, 1, 2}}, {{21, 23}}},
      {{3, 1, 4}, {{1, 0, 0}, {2, 1, 4}}, {{4, 12}}},
  };
  for (const Case& each : cases) {
    CAPTURE(to_string(each.box));
    const auto range = range_of(each.shape, each.box);
    REQUIRE(range.has_value() == each.range.has_value());
    if (range) {
      CHECK(std::pair(range->begin, range->end) == *each.range);
    }
  }
}

TEST_CASE("tiles cover every element once and begin where pieces begin") {
  struct Case {
    StoredTensor tensor;
    std::uint64_t tile_nbytes;
    std::vector<std::int64_t> begins;
  };
  const Case cases[] = {
      {tensor_of({10}, {whole({10})}), 16, {0, 4, 8}},
      {tensor_of({10}, {{{0}, {5}}, {{5}, {5}}}), 16, {0, 4, 5, 9}},
      {tensor_of({4, 3}, {{{2, 0}, {2, 3}}, {{0, 0}, {2, 3}}}), 1 << 20, {0, 6}},
      {tensor_of({4, 4}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}}), 32, {0, 8}},
      {tensor_of({3}, {whole({3})}), 1, {0, 1, 2}},
      {tensor_of({0, 4}, {}), 16, {}},
      {tensor_of({}, {whole({})}), 16, {0}},
  };
  for (const Case& each : cases) {
    const OutputTensor output{"weight", &each.tensor, Dtype::f32};
    const std::vector<Tile> tiles = cut_tiles(std::span(&output, 1), each.tile_nbytes);
    std::vector<std::int64_t> begins;
    std::int64_t end = 0;
    for (const Tile& tile : tiles) {
      begins.push_back(tile.begin);
      CHECK(tile.begin == end);
      end = tile.begin + tile.numel;
    }
    CHECK(end == numel_of(each.tensor.shape));
    CHECK(begins == each.begins);
  }
}

TEST_CASE("threads share the work and stop at the first failure") {
  for (const int threads : {1, 3}) {
    std::mutex seeing;
    std::multiset<std::size_t> seen;
    for_each_parallel(100, threads, [&](std::size_t index, std::size_t worker) {
      const std::scoped_lock lock(seeing);
      CHECK(worker < static_cast<std::size_t>(threads));
      seen.insert(index);
    });
    CHECK(seen.size() == 100);
    CHECK(std::set<std::size_t>(seen.begin(), seen.end()).size() == 100);

    std::atomic<int> begun = 0;
    const auto fails_at_once = [&](std::size_t, std::size_t) {
      ++begun;
      throw acc::Error(acc::Errc::config, "this one");
    };
    CHECK_THROWS_WITH_AS(for_each_parallel(100, threads, fails_at_once), "this one", acc::Error);
    CHECK(begun <= threads);
  }
}

TEST_CASE("all files of an output get their names, or none does") {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  {
    OutputSet set(out);
    set.write(set.add("a", 3), 0, std::as_bytes(std::span("abc", 3)));
    CHECK(names_in(out) == std::set<std::string>{"a.acc-tmp"});
  }
  CHECK_FALSE(fs::exists(out));

  fs::create_directory(out);
  std::ofstream(out / "a.acc-tmp") << "what a killed one left, which is longer";
  std::ofstream(out / "other") << "x";
  OutputSet set(out);
  const std::size_t a = set.add("a", 6);
  const std::size_t b = set.add("b", 1);
  set.write(a, 3, std::as_bytes(std::span("def", 3)));
  set.write(a, 0, std::as_bytes(std::span("abc", 3)));
  set.write(b, 0, std::as_bytes(std::span("1", 1)));
  CHECK(set.commit({}) == std::vector<fs::path>{out / "a", out / "b"});
  CHECK(names_in(out) == std::set<std::string>{"a", "b", "other"});
  CHECK(acc::test::file_text(out / "a") == "abcdef");

  CHECK_THROWS_WITH_AS(OutputSet(folder.path() / "no" / "where"), doctest::Contains("no/where"),
                       acc::Error);
}

TEST_CASE("records with one checksum for several tiles are checked before they are read") {
  const TemporaryFolder folder;
  const std::vector<float> values(3 << 18, 1.5F);  // three tiles
  const auto bytes = std::as_bytes(std::span(values));
  const fs::path path = folder.path() / "stored";
  for (const bool damaged : {false, true}) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(bytes.size()));
    Stored stored;
    stored.path = path;
    StoredTensor tensor = tensor_of({3 << 18}, {whole({3 << 18})});
    tensor.pieces.front().file = stored.catalog.file(path);
    tensor.pieces.front().nbytes = bytes.size();
    tensor.pieces.front().record = 0;
    StoredRecord record;
    record.name = "data/0";
    record.nbytes = bytes.size();
    record.crc32 = crc32(0, bytes);
    stored.catalog.records.push_back(record);
    stored.catalog.tensors.push_back(tensor);
    stored.catalog.index();
    Options options;
    options.num_threads = 2;
    if (!damaged) {
      const Result result = convert(stored, folder.path() / "whole", options);
      CHECK(result.tensors == 1);
      CHECK(result.nbytes == bytes.size());
      CHECK(acc::test::file_text(folder.path() / "whole" / "model.safetensors")
                .ends_with(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
      continue;
    }
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(2 << 20).put('x');
    CHECK_THROWS_WITH_AS(convert(stored, folder.path() / "out", options),
                         doctest::Contains("damaged"), acc::Error);
    CHECK_FALSE(fs::exists(folder.path() / "out"));
  }
}
