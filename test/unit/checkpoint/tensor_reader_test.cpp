// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/tensor_reader.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace acc::checkpoint;
using acc::OutputFile;
using acc::test::contains;
using acc::test::refusal;
using acc::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

/// The kind of checksums of a test's file.
enum class Sums { none, whole, blocks };

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<float> counted_values(std::int64_t numel) {
  std::vector<float> values(static_cast<std::size_t>(numel));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

/// Returns the elements of a box of a tensor with the values 1, 2, 3, ….
std::vector<float> counted(const Shape& shape, const Box& box) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    values.push_back(static_cast<float>(element_in_tensor(shape, box, i) + 1));
  }
  return values;
}

/// A file of raw records, each with several pieces of tensors.
class RecordFile {
 public:
  RecordFile(Catalog& catalog, InputPath path) : catalog_(catalog), path_(std::move(path)) {}

  /// Begins a record at some place.
  void begin(Sums sums) {
    bytes_.resize(bytes_.size() + 13, '?');
    start_ = bytes_.size();
    sums_ = sums;
  }
  StoredPiece add(const Box& box, std::span<const std::byte> elements) {
    StoredPiece piece;
    piece.box = box;
    piece.file = catalog_.file(path_);
    piece.offset = bytes_.size();
    piece.nbytes = elements.size();
    piece.record = sums_ == Sums::none ? -1 : static_cast<std::int32_t>(catalog_.records.size());
    bytes_.append(reinterpret_cast<const char*>(elements.data()), elements.size());
    return piece;
  }
  void end() {
    const auto payload = std::as_bytes(std::span(bytes_)).subspan(start_);
    if (sums_ != Sums::none) {
      StoredRecord record;
      record.name = "record";
      record.file = catalog_.file(path_);
      record.offset = start_;
      record.nbytes = payload.size();
      record.crc32 = crc32(0, payload);
      for (std::size_t at = 0; sums_ == Sums::blocks && at < payload.size(); at += torch::kBlock) {
        record.blocks.push_back(
            crc32(0, payload.subspan(at, std::min(torch::kBlock, payload.size() - at))));
      }
      catalog_.records.push_back(record);
    }
    std::ofstream(path_.path(), std::ios::binary) << bytes_;
  }
  [[nodiscard]] std::size_t nbytes() const { return bytes_.size(); }

 private:
  Catalog& catalog_;
  InputPath path_;
  std::string bytes_;
  std::size_t start_ = 0;
  Sums sums_ = Sums::none;
};

StoredTensor tensor_of(const std::string& name, const Shape& shape, Dtype dtype = Dtype::f32) {
  StoredTensor tensor;
  tensor.name = tensor.stored_name = name;
  tensor.shape = shape;
  tensor.dtype = dtype;
  return tensor;
}

/// A tensor with the values 1, 2, 3, … in one file, cut into boxes, in one record or one each.
StoredTensor store(RecordFile& file, const Shape& shape, const std::vector<Box>& boxes, Sums sums,
                   bool one_record) {
  StoredTensor tensor = tensor_of("w", shape);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (i == 0 || !one_record) {
      file.begin(sums);
    }
    tensor.pieces.push_back(file.add(boxes[i], bytes_of(counted(shape, boxes[i]))));
    if (i + 1 == boxes.size() || !one_record) {
      file.end();
    }
  }
  return tensor;
}

std::int64_t below(std::mt19937& generator, std::int64_t limit) {
  return static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(limit));
}

std::vector<Box> cut(const Shape& shape, std::mt19937& generator) {
  std::vector<Box> boxes;
  switch (generator() % 3) {
    case 0:  // ranges
      for (std::int64_t begin = 0, numel = numel_of(shape); begin < numel;) {
        const auto end = std::min(numel, begin + 1 + below(generator, numel));
        std::ranges::move(boxes_of_range(shape, begin, end), std::back_inserter(boxes));
        begin = end;
      }
      break;
    case 1:  // columns
      for (std::int64_t i = 0; i < 3; ++i) {
        Box box = whole(shape);
        box.offsets.back() = shape.back() * i / 3;
        box.sizes.back() = shape.back() * (i + 1) / 3 - box.offsets.back();
        boxes.push_back(box);
      }
      break;
    default:  // rows
      for (int rank = 0; rank < 3; ++rank) {
        boxes.push_back(row_box(shape, rank, 3).value());
      }
  }
  std::ranges::shuffle(boxes, generator);
  return boxes;
}

void flip(const fs::path& path, std::size_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

/// A destination for reads, filled with NaN.
std::vector<float> unread(std::int64_t numel) {
  return std::vector<float>(static_cast<std::size_t>(numel),
                            std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

TEST_CASE("any range and any box of any cut is read, with any kind of checksum") {
  const TemporaryFolder folder;
  std::mt19937 generator(11);
  for (int round = 0; round < 24; ++round) {
    // Rows shorter and longer than one read, records of one block and of many blocks.
    const Shape shape = round % 3 == 0   ? Shape{7, 3, 11}
                        : round % 3 == 1 ? Shape{400, 1000}
                                         : Shape{5, 50'000};
    const auto sums = static_cast<Sums>(round / 2 % 3);
    CAPTURE(to_string(shape));
    CAPTURE(static_cast<int>(sums));
    Catalog catalog;
    RecordFile file(catalog, folder.path() / ("f" + std::to_string(round)));
    const StoredTensor tensor =
        store(file, shape, cut(shape, generator), sums, generator() % 2 == 0);
    TensorReader reader(catalog);
    const std::int64_t numel = numel_of(shape);
    for (int i = 0; i < 12; ++i) {
      const std::int64_t begin = i == 0 ? 0 : below(generator, numel);
      const std::int64_t count = i == 0 ? numel : below(generator, numel - begin + 1);
      auto values = unread(count);
      reader.read(tensor, begin, count, Dtype::f32, values.data());
      const auto all = counted_values(begin + count);
      REQUIRE(std::equal(values.begin(), values.end(), all.begin() + begin));
      std::vector<double> doubles(static_cast<std::size_t>(count));
      reader.read(tensor, begin, count, Dtype::f64, doubles.data());
      REQUIRE(std::equal(doubles.begin(), doubles.end(), values.begin()));
    }
    for (int i = 0; i < 6; ++i) {
      Box box = whole(shape);
      for (std::size_t d = 0; d < shape.size(); ++d) {
        box.offsets[d] = below(generator, shape[d]);
        box.sizes[d] = below(generator, shape[d] - box.offsets[d] + 1);
      }
      auto values = unread(box.numel());
      reader.read(tensor, box, Dtype::f32, values.data());
      REQUIRE(values == counted(shape, box));
    }
    CHECK(reader.verify(tensor) == (sums != Sums::none));
  }
}

TEST_CASE("a changed byte is detected wherever it is, and only when it is read") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "data.bin";
  const Shape shape = {3, 100'000};
  const std::int64_t numel = numel_of(shape);
  constexpr std::int64_t kBlockElements = torch::kBlock / sizeof(float);
  for (const Sums sums : {Sums::blocks, Sums::whole}) {
    for (const std::size_t element : {0, 1, 65'535, 65'536, 150'000, 262'144, 299'999}) {
      CAPTURE(element);
      Catalog catalog;
      RecordFile file(catalog, path);
      const StoredTensor tensor = store(file, shape, {whole(shape)}, sums, true);
      flip(path, catalog.records[0].offset + element * sizeof(float) + element % 4);
      TensorReader reader(catalog);
      const auto bad = static_cast<std::int64_t>(element);
      auto values = unread(numel);
      const std::string message =
          refusal([&] { reader.read(tensor, 0, numel, Dtype::f32, values.data()); });
      CAPTURE(message);
      CHECK(message.starts_with(path.string() + ": tensor 'w', elements "));
      CHECK(contains(message, "damaged: checksum expected "));
      CHECK(refusal([&] { reader.verify(tensor); }) == message);
      std::vector<std::uint16_t> halves(values.size());
      CHECK(refusal([&] { reader.read(tensor, 0, numel, Dtype::bf16, halves.data()); }) == message);
      if (sums == Sums::whole) {
        CHECK(contains(message, "elements 0 to 300000:"));
        continue;
      }
      const std::int64_t block = bad / kBlockElements * kBlockElements;
      const std::int64_t block_end = std::min(numel, block + kBlockElements);
      CHECK(contains(
          message, "elements " + std::to_string(block) + " to " + std::to_string(block_end) + ":"));
      // Reading any element of its block fails. Other blocks are read.
      CHECK(refusal([&] { reader.read(tensor, block_end - 1, 1, Dtype::f32, values.data()); }) ==
            message);
      reader.read(tensor, 0, block, Dtype::f32, values.data());
      reader.read(tensor, block_end, numel - block_end, Dtype::f32, values.data());
    }
  }
}

TEST_CASE("verify checks a record with one checksum once for all its parts") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "data.bin";
  Catalog catalog;
  RecordFile file(catalog, path);
  const Shape shape = {100'000};
  const StoredTensor tensor =
      store(file, shape, {{{0}, {30'000}}, {{30'000}, {70'000}}}, Sums::whole, true);
  TensorReader reader(catalog);
  CHECK(reader.verify(tensor));
  flip(path, file.nbytes() - 1);
  CHECK(reader.verify(tensor));  // the result is remembered
  catalog.files[0] = path;       // opened anew
  TensorReader another(catalog);
  CHECK(contains(refusal([&] { another.verify(tensor); }), "elements 0 to 30000: damaged"));
}

TEST_CASE("small records are checked for every element that is read") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "data.bin";
  Catalog catalog;
  RecordFile file(catalog, path);
  const StoredTensor tensor = store(file, {40}, {{{0}, {25}}, {{25}, {15}}}, Sums::whole, false);
  flip(path, file.nbytes() - 1);
  TensorReader reader(catalog);
  auto values = unread(25);
  reader.read(tensor, 0, 25, Dtype::f32, values.data());
  CHECK(values == counted_values(25));
  CHECK(contains(refusal([&] { reader.read(tensor, 24, 2, Dtype::f32, values.data()); }),
                 "tensor 'w', elements 25 to 40: damaged"));
}

TEST_CASE("pieces that do not fit their file are refused with file and tensor") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "data.bin";
  Catalog catalog;
  RecordFile file(catalog, path);
  const StoredTensor good = store(file, {2, 6}, {whole({2, 6})}, Sums::blocks, true);
  struct Row {
    const char* message;
    void (*spoil)(StoredTensor& tensor, Catalog& all);
  };
  const Row rows[] = {
      {"truncated: expected 48 bytes at byte 14",
       [](StoredTensor& tensor, Catalog&) {
         tensor.pieces[0].offset += 1;
         tensor.pieces[0].record = -1;
       }},
      {"truncated",
       [](StoredTensor& tensor, Catalog&) {
         tensor.pieces[0].offset = ~std::uint64_t{0} - 20;
         tensor.pieces[0].record = -1;
       }},
      {"needs 48 bytes, found 44",
       [](StoredTensor& tensor, Catalog&) { tensor.pieces[0].nbytes -= 4; }},
      {"does not fit the record",
       [](StoredTensor& tensor, Catalog&) { tensor.pieces[0].offset -= 4; }},
      {"does not fit the record",
       [](StoredTensor&, Catalog& all) { all.records[0].blocks.push_back(7); }},
      {"does not fit the record",
       [](StoredTensor&, Catalog& all) { all.records[0].nbytes = ~std::uint64_t{0}; }},
      {"12 elements wanted, its pieces hold 6",
       [](StoredTensor& tensor, Catalog&) {
         tensor.pieces[0].box.sizes[0] = 1;
         tensor.pieces[0].nbytes = 24;
       }},
      {"12 elements wanted, its pieces hold 0",
       [](StoredTensor& tensor, Catalog&) { tensor.pieces.clear(); }},
      {"No such file",
       [](StoredTensor&, Catalog& all) { all.files[0] = all.files[0].string() + ".not"; }},
      {"which cannot be read as float32",
       [](StoredTensor& tensor, Catalog&) { tensor.dtype = Dtype::i32; }},
  };
  for (const Row& row : rows) {
    StoredTensor tensor = good;
    Catalog changed = catalog;
    row.spoil(tensor, changed);
    TensorReader reader(changed);
    auto values = unread(12);
    const std::string message =
        refusal([&] { reader.read(tensor, 0, 12, Dtype::f32, values.data()); });
    CAPTURE(message);
    CHECK(contains(message, row.message));
  }
  TensorReader reader(catalog);
  float value = 0;
  CHECK_THROWS_AS(reader.read(good, 11, 2, Dtype::f32, &value), acc::Error);
  CHECK_THROWS_AS(reader.read(good, Box{{0, 6}, {1, 1}}, Dtype::f32, &value), acc::Error);
}

TEST_CASE("more files than may be open at once are read by many threads") {
  const TemporaryFolder folder;
  Catalog catalog;
  constexpr std::int64_t kFiles = 600;
  const InputPath opened = folder.path();
  StoredTensor tensor = tensor_of("w", {kFiles, 10});
  for (std::int64_t i = 0; i < kFiles; ++i) {
    RecordFile file(catalog, opened / std::to_string(i));
    file.begin(Sums::whole);
    const Box row = {{i, 0}, {1, 10}};
    tensor.pieces.push_back(file.add(row, bytes_of(counted(tensor.shape, row))));
    file.end();
  }
  TensorReader reader(catalog);
  const auto expected = counted_values(kFiles * 10);
  std::vector<std::vector<float>> values(4, unread(kFiles * 10));
  {
    std::vector<std::jthread> threads;
    for (auto& mine : values) {
      threads.emplace_back([&] { reader.read(tensor, 0, kFiles * 10, Dtype::f32, mine.data()); });
    }
  }
  for (const auto& mine : values) {
    CHECK(mine == expected);
  }
  const auto open = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  CHECK(open < 300);
}

TEST_CASE("an archive is a piece with its own dtype, shape and checksums") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "__0_0.distcp";
  const Shape shape = {3, 100'000};
  Catalog catalog;
  StoredTensor tensor = tensor_of("w", shape);
  {
    OutputFile out(path);
    for (std::int64_t row = 0; row < 3; ++row) {
      StoredPiece piece;
      piece.box = {{row, 0}, {1, 100'000}};
      piece.file = catalog.file(path);
      piece.offset = out.position();
      piece.packing = Packing::archive;
      torch::TorchFileWriter archive(out, torch::tensor_pickle({Dtype::f32, piece.box.sizes}));
      const auto values = counted(shape, piece.box);
      archive.storage(values.size() * sizeof(float),
                      [&](const torch::Sink& sink) { sink(bytes_of(values)); });
      archive.finish();
      piece.nbytes = out.position() - piece.offset;
      tensor.pieces.push_back(piece);
    }
    out.close();
  }
  const std::int64_t numel = numel_of(shape);
  auto values = unread(numel);
  {
    TensorReader reader(catalog);
    reader.read(tensor, 0, numel, Dtype::f32, values.data());
    CHECK(values == counted_values(numel));
    const Box box = {{1, 70'000}, {2, 3}};
    auto few = unread(6);
    reader.read(tensor, box, Dtype::f32, few.data());
    CHECK(few == counted(shape, box));
    CHECK(reader.verify(tensor));
  }
  StoredTensor other = tensor;
  other.pieces[1].box = {{1, 0}, {2, 50'000}};
  CHECK(contains(
      refusal([&] { TensorReader(catalog).read(other, 100'000, 1, Dtype::f32, values.data()); }),
      "tensor 'w': expected float32 of shape [2, 50000] at byte "));
  other = tensor;
  other.dtype = Dtype::i32;
  CHECK(
      contains(refusal([&] { TensorReader(catalog).read(other, 0, 1, Dtype::i32, values.data()); }),
               "found float32 of shape [1, 100000]"));
  // Every 20,011th byte of the file: an element or any other byte of an archive.
  for (std::size_t at = 0; at < fs::file_size(path); at += 20'011) {
    CAPTURE(at);
    flip(path, at);
    TensorReader reader(catalog);
    std::string message = refusal([&] { reader.verify(tensor); });
    CAPTURE(message);
    if (!message.empty()) {
      CHECK(message.starts_with(path.string()));
      CHECK((contains(message, "tensor 'w'") || contains(message, ", w: ")));
    } else {  // padding, or bytes that are not read: nothing was changed
      reader.read(tensor, 0, numel, Dtype::f32, values.data());
      CHECK(values == counted_values(numel));
    }
    flip(path, at);
  }
}

TEST_CASE("tensors in another order than row-major are read and checked whole") {
  const TemporaryFolder folder;
  const Shape shape = {40, 30, 70};
  const Shape strides = {2100, 1, 30};  // the last two dimensions are exchanged
  const std::vector<float> stored = counted_values(numel_of(shape));
  std::vector<float> expected(stored.size());
  gather_strided(reinterpret_cast<const std::byte*>(stored.data()), shape, strides, sizeof(float),
                 0, numel_of(shape), reinterpret_cast<std::byte*>(expected.data()));
  REQUIRE(expected[1] == stored[30]);
  for (const Sums sums : {Sums::none, Sums::whole, Sums::blocks}) {
    Catalog catalog;
    const fs::path path = folder.path() / std::to_string(static_cast<int>(sums));
    RecordFile file(catalog, path);
    file.begin(sums);
    StoredTensor tensor = tensor_of("w", shape);
    tensor.pieces.push_back(file.add(whole(shape), bytes_of(stored)));
    tensor.strides = strides;
    file.end();
    catalog.tensors.push_back(tensor);
    {
      TensorReader reader(catalog);
      CHECK(reader.checks_parts(tensor));
      CHECK(reader.verify(tensor) == (sums != Sums::none));
      std::vector<double> range(9000);
      reader.read(tensor, 5000, std::ssize(range), Dtype::f64, range.data());
      CHECK(std::equal(range.begin(), range.end(), expected.begin() + 5000));
      const Box box{.offsets = {3, 4, 5}, .sizes = {2, 7, 11}};
      std::vector<float> part(static_cast<std::size_t>(box.numel()));
      reader.read(tensor, box, Dtype::f32, part.data());
      for (std::size_t i = 0; i < part.size(); ++i) {
        const auto at = element_in_tensor(shape, box, static_cast<std::int64_t>(i));
        CHECK(part[i] == expected[static_cast<std::size_t>(at)]);
      }
    }
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(tensor.pieces[0].offset) + 9)
        .put('?');
    if (sums != Sums::none) {
      catalog.files[0] = path;  // opened anew
      TensorReader reader(catalog);
      float value = 0;
      const std::string fault = refusal([&] { reader.read(tensor, 80000, 1, Dtype::f32, &value); });
      CHECK(contains(fault, "tensor 'w', elements 0 to 84000: damaged"));
      CHECK(contains(refusal([&] { reader.verify(tensor); }), "damaged"));
    }
  }
}
