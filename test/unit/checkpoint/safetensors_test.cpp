// SPDX-License-Identifier: Apache-2.0
#include "support/errors.hpp"
#include "support/safetensors_file.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::test::SafetensorsFile;
using acc::test::SafetensorsWriter;
using acc::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string refusal(const fs::path& path) {
  return acc::test::refusal([&] { const SafetensorsFile file(path); });
}

std::vector<float> counting(std::size_t numel) {
  std::vector<float> values(numel);
  std::iota(values.begin(), values.end(), -3.0F);
  return values;
}

}  // namespace

TEST_CASE("a file of the safetensors package reads: names, shapes, metadata, values") {
  const SafetensorsFile file(ACC_TEST_DATA "/parity_gpt/init.safetensors");
  std::int64_t numel = 0;
  for (const TensorEntry& tensor : file.tensors()) {
    CHECK(tensor.dtype == Dtype::f32);
    numel += tensor.numel();
  }
  CHECK(numel == 120'576);
  CHECK(file.at("transformer.h.1.attn.c_attn.weight").shape == Shape{64, 192});
  CHECK_FALSE(file.contains("lm_head.weight"));
  // The layer norms start as ones.
  std::vector<float> gain(64);
  file.read_slice("transformer.ln_f.weight", 0, gain);
  CHECK(gain == std::vector<float>(64, 1.0F));
}

TEST_CASE("a written file reads back, whole and in slices, for any chunk sizes") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const std::vector<NamedTensor> specs = {
      {"odd \"name\"/é", Dtype::f32, {7, 11}}, {"scalar", Dtype::f32, {}},
      {"empty", Dtype::f32, {0, 4}},           {"half", Dtype::f16, {9}},
      {"brain", Dtype::bf16, {5000}},          {"none", Dtype::bf16, {0}}};
  std::mt19937 generator(3);
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  CHECK_FALSE(fs::exists(path));
  for (const NamedTensor& spec : specs) {
    const auto values = counting(static_cast<std::size_t>(numel_of(spec.shape)));
    std::span<const float> rest = values;
    while (!rest.empty()) {
      const auto chunk = std::min<std::size_t>(rest.size(), generator() % 2000);
      writer.append(rest.first(chunk));
      rest = rest.subspan(chunk);
    }
  }
  writer.commit();
  CHECK_FALSE(fs::exists(path.string() + ".acc-tmp"));

  const SafetensorsFile file(path);
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.tensors().size() == specs.size());
  for (const NamedTensor& spec : specs) {
    CHECK(file.at(spec.name).shape == spec.shape);
    CHECK(file.at(spec.name).dtype == spec.dtype);
    const auto numel = static_cast<std::size_t>(numel_of(spec.shape));
    std::vector<float> all(numel);
    file.read_slice(spec.name, 0, all);
    for (std::size_t i = 0; i < numel; ++i) {
      const float expected = static_cast<float>(i) - 3.0F;
      // bf16 keeps 8 bits of mantissa; the other values are exact.
      REQUIRE(std::abs(all[i] - expected) <=
              (spec.dtype == Dtype::bf16 ? std::abs(expected) / 256 : 0.0F));
    }
    for (std::size_t begin = 0; begin < numel; begin += 7) {
      std::vector<float> slice(std::min<std::size_t>(5, numel - begin));
      file.read_slice(spec.name, static_cast<std::int64_t>(begin), slice);
      REQUIRE(std::equal(slice.begin(), slice.end(), all.begin() + static_cast<long>(begin)));
    }
  }
}

TEST_CASE("the data begins at a multiple of 8") {
  const TemporaryFolder folder;
  for (const std::string name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"}) {
    SafetensorsWriter writer(folder.path() / "f", {{name, Dtype::f32, {1}}});
    writer.append(counting(1));
    writer.commit();
    CHECK(acc::test::file_text(folder.path() / "f").size() % 8 == 4);
  }
}

TEST_CASE("tensors of every dtype are written from their bytes") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const std::vector<NamedTensor> tensors = {{"i", Dtype::i64, {2}},
                                            {"f", Dtype::f64, {3}},
                                            {"e", Dtype::f8_e4m3, {0}},
                                            {"b", Dtype::boolean, {5}}};
  SafetensorsWriter writer(path, tensors);
  std::string bytes(45, 0);
  std::iota(bytes.begin(), bytes.end(), char{1});
  const auto raw = std::as_bytes(std::span(bytes));
  writer.append(raw.first(7));
  writer.append(raw.subspan(7, 9));
  CHECK_THROWS_WITH_AS(writer.append(raw.subspan(16)),
                       doctest::Contains("29 bytes are more than the 24 that tensor 'f' has left"),
                       acc::Error);
  writer.append(raw.subspan(16, 24));
  CHECK_THROWS_WITH_AS(writer.append(counting(1)), doctest::Contains("cannot convert"), acc::Error);
  writer.append(raw.subspan(40));
  writer.commit();
  const std::string file = acc::test::file_text(path);
  const SafetensorsLayout layout = lay_out_safetensors(tensors);
  CHECK(file == layout.header + bytes);
  CHECK(layout.nbytes == file.size());
  const std::uint64_t begin = layout.header.size();
  CHECK(layout.offsets == std::vector<std::uint64_t>{begin, begin + 16, begin + 40, begin + 40});
  const SafetensorsHeader header = read_header(InputFile(path));
  REQUIRE(header.tensors.size() == 4);
  CHECK(header.data_begin == begin);
  CHECK(header.tensors.back().dtype == Dtype::boolean);
}

TEST_CASE("F64 is narrowed, other dtypes are refused by name") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const double doubles[] = {1.5, -1e-3};
  std::string data(sizeof doubles, '\0');
  std::memcpy(data.data(), doubles, sizeof doubles);
  acc::test::write_text(path, file_of(R"({"i":{"dtype":"I32","shape":[1],"data_offsets":[16,20]},)"
                                      R"("d":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})",
                                      data + "abcd"));
  const SafetensorsFile file(path);
  CHECK(file.tensors().front().name == "d");
  std::vector<float> values(2);
  file.read_slice("d", 0, values);
  CHECK(values == std::vector<float>{1.5F, -1e-3F});
  CHECK_THROWS_WITH_AS(file.read_slice("i", 0, std::span(values).first(1)),
                       doctest::Contains("'i': expected F32, F16, BF16 or F64, found I32"),
                       acc::Error);
  CHECK_THROWS_WITH_AS(file.read_slice("x", 0, values), doctest::Contains("no tensor 'x'"),
                       acc::Error);
  CHECK_THROWS_AS(file.read_slice("d", 1, values), acc::Error);
}

TEST_CASE("damaged files are refused with the reason") {
  struct Row {
    std::string bytes;
    const char* message;
  };
  const auto one = [](const std::string& entry, std::size_t data) {
    return file_of("{\"w\":" + entry + "}", std::string(data, 'x'));
  };
  const auto two = [](const std::string& first, const std::string& second, std::size_t data) {
    const std::string head = R"({"dtype":"U8","shape":[4],"data_offsets":)";
    return file_of("{\"a\":" + head + first + "},\"b\":" + head + second + "}}",
                   std::string(data, 'x'));
  };
  std::string huge_header(16, '\0');
  huge_header[5] = 1;
  const Row rows[] = {
      {"", "at least 8 bytes, found 0"},
      {"1234567", "at least 8 bytes, found 7"},
      {huge_header, "expected at most 100 MB"},
      {file_of("{}", "").substr(0, 9), "truncated: the header has 2 bytes, found 1"},
      {file_of("{\"w\":", ""), "not valid JSON"},
      {file_of("[]", ""), "not a JSON object"},
      {file_of("\xef\xbb\xbf{}", ""), "not a JSON object"},
      {file_of("{\"w\":[[[[7]]]]}", ""), "nested deeper"},
      {file_of("{\"w\":7}", ""), "expected an object with dtype, shape and data_offsets, found 7"},
      {file_of(R"({"__metadata__":{"a":1}})", ""), "__metadata__ must map strings to strings"},
      {one(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", 4),
       "dtype \"F31\" is not supported"},
      {one(R"({"dtype":"F4","shape":[2,3],"data_offsets":[0,3]})", 3),
       "rows of shape [2, 3] of F4 do not fill whole bytes (cannot be read here, and may be "
       "sound)"},
      {one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4), "'shape' to be a list"},
      {one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4), "found [1.5]"},
      {one(R"({"dtype":"F32","data_offsets":[0,4]})", 4), "found nothing"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", 4), "must be [begin, end]"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4), "must be [begin, end]"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), "shape [3] of F32 needs 12"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
       "more elements than can be counted"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 5),
       "truncated file: the tensor ends at byte 8 of the data, the file has 5"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 6),
       "fill 4 bytes, the file has 6"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[2,6]})", 6), "leaves a hole"},
      {two("[0,4]", "[2,6]", 6), "'b': overlaps"},
      {two("[0,4]", "[5,9]", 9), "'b': leaves a hole"},
      {file_of(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
               R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
               ""),
       "'w' is listed twice"},
  };
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "bad.safetensors";
  for (const Row& row : rows) {
    acc::test::write_text(path, row.bytes);
    const std::string message = refusal(path);
    CAPTURE(message);
    CHECK(message.find(row.message) != std::string::npos);
    CHECK(message.find(path.string()) != std::string::npos);
  }
  CHECK(refusal(folder.path() / "absent").find("No such file") != std::string::npos);
  CHECK(refusal(folder.path()).find("not a regular file") != std::string::npos);
}

TEST_CASE("every truncated file is refused") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path() / "whole",
                           {{"a", Dtype::f32, {3}}, {"b", Dtype::f16, {2}}});
  writer.append(counting(3));
  writer.append(counting(2));
  writer.commit();
  const std::string whole = acc::test::file_text(folder.path() / "whole");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    acc::test::write_text(folder.path() / "cut", whole.substr(0, length));
    REQUIRE_FALSE(refusal(folder.path() / "cut").empty());
  }
}

TEST_CASE("an unfinished or wrong write leaves nothing behind") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  acc::test::write_text(path, "old");
  {
    SafetensorsWriter writer(path, {{"a", Dtype::f32, {3}}});
    writer.append(counting(2));
    CHECK_THROWS_WITH_AS(writer.append(counting(2)), doctest::Contains("tensor 'a' has left"),
                         acc::Error);
    CHECK_THROWS_WITH_AS(writer.commit(), doctest::Contains("8 of its 12 bytes"), acc::Error);
  }
  CHECK(acc::test::file_text(path) == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
  CHECK_THROWS_AS(SafetensorsWriter(path, {{"a", Dtype::f32, {1}}, {"a", Dtype::f32, {1}}}),
                  acc::Error);
  CHECK_THROWS_WITH_AS(SafetensorsWriter(folder.path() / "no" / "where", {}),
                       doctest::Contains("No such file"), acc::Error);
}
