// SPDX-License-Identifier: Apache-2.0
#include "data/batch_file.hpp"
#include "data/token_files.hpp"
#include "run/training_data.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"

#include <acc/base/error.hpp>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

using namespace train_gpt;

namespace {

using acc::test::TemporaryFolder;

std::string little_endian(std::initializer_list<std::uint16_t> values) {
  std::string bytes;
  for (const std::uint16_t value : values) {
    bytes += {static_cast<char>(value & 255), static_cast<char>(value >> 8)};
  }
  return bytes;
}

std::string npy(const std::string& dictionary, std::size_t ids) {
  std::string text("\x93NUMPY\x01\x00", 8);
  text += {static_cast<char>(dictionary.size()), '\0'};
  text += dictionary;
  for (std::size_t i = 0; i < ids; ++i) {
    text += little_endian({static_cast<std::uint16_t>(i), 0});
  }
  return text;
}

Batch batch_of(BatchShape shape) {
  const auto count = static_cast<std::size_t>(shape.rows());
  return {std::vector<std::int32_t>(count), std::vector<std::int32_t>(count), shape};
}

const DataParallel kAlone{.rank = 0, .world_size = 1, .micro_steps = 1};

}  // namespace

TEST_CASE("a batches file has one row per sequence of a step") {
  const TemporaryFolder folder;
  const auto path = folder.write(
      "b.npy", npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 8, 3), }\n", 48));
  CHECK(read_batch_file_shape(path).rows == 8);
  const BatchFile data(path, 48);
  Batch batch = batch_of({.batch = 2, .time = 2});
  data.read({.step = 1, .sequence = 6}, batch);
  CHECK(batch.inputs == std::vector<std::int32_t>{42, 43, 45, 46});
  CHECK(batch.targets == std::vector<std::int32_t>{43, 44, 46, 47});
}

TEST_CASE("a malformed batches file is refused by name") {
  const TemporaryFolder folder;
  const std::string good = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 8, 3), }\n";
  struct Case {
    std::string content, expected;
  };
  const std::vector<Case> cases = {
      {"hello", "not a .npy file of version 1"},
      {npy(good, 0).substr(0, 30), "ends within its header"},
      {npy(good, 47), "truncated: 188 bytes"},
      {npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 8, 3), }\n", 96),
       "expected little-endian int32"},
      {npy("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 8, 3), }\n", 48), "row-major"},
      {npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 24), }\n", 48),
       "[steps, rows, seq_len + 1]"},
      {npy(good, 48), "token id 40 at step 1, row 5, column 1 is outside the vocabulary"},
  };
  for (const Case& c : cases) {
    const auto path = folder.write("b.npy", c.content);
    const auto message = acc::test::refusal([&] { BatchFile(path, 40); });
    CAPTURE(message);
    CHECK(message.find(path) == 0);
    CHECK(message.find(c.expected) != std::string::npos);
  }
}

TEST_CASE("token files form one sequence over files and folders, sorted by name") {
  const TemporaryFolder folder;
  folder.write("text/b", "def");
  folder.write("text/a/z", "abc");
  const auto last = folder.write("last", "gh");
  // Eight tokens and windows of 7 + 1: there is one window only.
  const TokenFiles data({(folder.path() / "text").string(), last}, TokenType::byte, 256, 7, 1,
                        kAlone);
  Batch batch = batch_of({.batch = 1, .time = 7});
  data.read({.step = 0, .sequence = 0}, batch);
  CHECK(std::string(batch.inputs.begin(), batch.inputs.end()) == "abcdefg");
  CHECK(std::string(batch.targets.begin(), batch.targets.end()) == "bcdefgh");
}

TEST_CASE("token files: windows that the position names, each with the token after it") {
  const TemporaryFolder folder;
  const TokenFiles data({folder.write("text", "abcdefghij")}, TokenType::byte, 256, 3, 1, kAlone);
  CHECK(data.tokens() == 10);  // three windows of 3 + 1
  const std::vector<acc::DataSample> windows = {{0, 0, 2}, {0, 1, 0}};
  Batch batch = batch_of({.batch = 2, .time = 3});
  data.read({.step = 5, .sequence = 4, .windows = windows}, batch);
  CHECK(std::string(batch.inputs.begin(), batch.inputs.end()) == "ghiabc");
  CHECK(std::string(batch.targets.begin(), batch.targets.end()) == "hijbcd");
}

TEST_CASE("a sequence depends only on seed, step and its index in the global batch") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += little_endian({static_cast<std::uint16_t>(i)});
  }
  const auto path = folder.write("t.bin", text);
  std::set<std::int32_t> starts;
  for (const std::uint64_t seed : {1, 2}) {
    const TokenFiles data({path}, TokenType::uint16, 5000, 4, seed, kAlone);
    const TokenFiles of_rank_2({path}, TokenType::uint16, 5000, 4, seed, {2, 3, 1});
    for (const std::int64_t step : {0, 7}) {
      Batch whole = batch_of({.batch = 6, .time = 4});
      data.read({.step = step, .sequence = 0}, whole);
      Batch part = batch_of({.batch = 2, .time = 4});
      of_rank_2.read({.step = step, .sequence = 4}, part);
      CHECK(std::equal(part.inputs.begin(), part.inputs.end(), whole.inputs.begin() + 16));
      CHECK(std::equal(part.targets.begin(), part.targets.end(), whole.targets.begin() + 16));
      CHECK(whole.targets[3] == whole.inputs[3] + 1);
      for (std::size_t row = 0; row < 6; ++row) {
        starts.insert(whole.inputs[row * 4]);
      }
    }
  }
  CHECK(starts.size() == 24);  // 2 seeds x 2 steps x 6 sequences, all different
}

TEST_CASE("a global batch is divided completely and in order among ranks and micro-steps") {
  for (const std::int64_t sequences : {1, 4, 8, 13}) {
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      for (const std::int64_t micro_steps : {1, 2}) {
        CAPTURE(sequences);
        CAPTURE(ranks);
        CAPTURE(micro_steps);
        if (sequences < ranks * micro_steps) {
          CHECK(acc::test::refusal([&] {
                  GlobalBatch(sequences, {0, ranks, micro_steps});
                })
                    .find("too small for " + std::to_string(micro_steps) + " micro-steps x " +
                          std::to_string(ranks) + " ranks") != std::string::npos);
          continue;
        }
        std::int64_t next = 0;
        std::int64_t largest = 0;
        for (std::int64_t part = 0; part < ranks * micro_steps; ++part) {
          const GlobalBatch batch(sequences, {part % ranks, ranks, micro_steps});
          const Share share = batch.share(part / ranks);
          CHECK(share.first == next);
          CHECK(share.count >= 1);
          // Each sequence has the same weight in the mean over all parts.
          CHECK(share.weight / static_cast<double>(share.count) ==
                doctest::Approx(static_cast<double>(ranks * micro_steps) /
                                static_cast<double>(sequences)));
          next += share.count;
          largest = std::max(largest, share.count);
        }
        CHECK(next == sequences);
        CHECK(largest == GlobalBatch(sequences, {0, ranks, micro_steps}).largest_share());
      }
    }
  }
}

TEST_CASE("the size of the global batch follows from flags and settings") {
  const TemporaryFolder folder;
  Options options;
  const DataParallel parallel{.rank = 0, .world_size = 3, .micro_steps = 2};
  CHECK(global_batch(options, parallel).sequences() == 24);
  options.micro_batch = 5;
  CHECK(global_batch(options, parallel).sequences() == 30);
  options.micro_batch.reset();
  options.global_batch = 7;
  CHECK(global_batch(options, parallel).sequences() == 7);
  options.global_batch.reset();
  options.batches = folder.write(
      "b.npy", npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 8, 3), }\n", 48));
  CHECK(global_batch(options, parallel).sequences() == 8);
  options.micro_batch = 2;
  CHECK(acc::test::refusal([&] { global_batch(options, parallel); }) ==
        options.batches + ": 8 rows per step are not 2 micro-steps x 3 ranks x micro-batch 2");
}

TEST_CASE("malformed token files are refused by name") {
  const TemporaryFolder folder;
  const auto odd = folder.write("odd.bin", "abc");
  const auto ids = folder.write("ids.bin", little_endian({1, 2, 300, 4}));
  const auto open = [&](const std::string& path, std::int64_t vocab, std::int64_t seq_len) {
    return acc::test::refusal(
        [&] { TokenFiles({path}, TokenType::uint16, vocab, seq_len, 1, kAlone); });
  };
  CHECK(open(odd, 10, 1) ==
        odd + ": 3 bytes are not a multiple of 2, the size of a uint16 token id");
  CHECK(open(ids, 300, 2) ==
        ids + ": token id 300 at position 2 is outside the vocabulary, expected 0 to 299");
  CHECK(open(ids, 301, 4) == ids + " contains 4 tokens, one sequence needs seq_len + 1 = 5");
  CHECK(open("/no/such", 9, 1) == "cannot read /no/such: No such file or directory");
}
