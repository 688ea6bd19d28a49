// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/torch/torch_file.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::OutputFile;
using acc::test::refusal;
using acc::test::TemporaryFolder;
using torch::kBlock;
using torch::TorchFile;

namespace {

const std::string kData = ACC_TEST_DATA "/checkpoints/torch_save/";

template <typename T>
std::vector<T> values_of(const TorchFile& file, const torch::TensorRef& tensor) {
  std::vector<T> values(tensor.bytes.nbytes / sizeof(T));
  file.file().read(tensor.bytes.offset, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<std::byte> random_bytes(std::size_t nbytes, unsigned seed) {
  std::vector<std::byte> bytes(nbytes);
  std::mt19937 generator(seed);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(generator());
  }
  return bytes;
}

/// Writes byte tensors "0", "1", … in pieces of random sizes, and returns their layout.
archive::Layout write_file(OutputFile& out, const std::vector<std::vector<std::byte>>& storages) {
  pickle::Writer pickled;
  std::vector<std::uint64_t> sizes;
  pickled.begin_dict();
  for (std::size_t i = 0; i < storages.size(); ++i) {
    sizes.push_back(storages[i].size());
    pickled.text(std::to_string(i));
    torch::push_tensor(pickled, {Dtype::u8, {static_cast<std::int64_t>(sizes[i])}},
                       static_cast<int>(i));
  }
  pickled.end_dict();
  const std::string data = pickled.finish();
  torch::TorchFileWriter writer(out, data);
  std::mt19937 generator(1);
  for (const auto& bytes : storages) {
    writer.storage(bytes.size(), [&](const torch::Sink& sink) {
      std::span<const std::byte> rest = bytes;
      while (!rest.empty()) {
        const std::size_t count = std::min<std::size_t>(rest.size(), 1 + generator() % 400'000);
        sink(rest.first(count));
        rest = rest.subspan(count);
      }
    });
  }
  writer.finish();
  return torch::archive_layout(data.size(), sizes);
}

std::filesystem::path changed(const TemporaryFolder& folder, const std::string& name,
                              std::string bytes) {
  std::ofstream(folder.path() / name, std::ios::binary) << bytes;
  return folder.path() / name;
}

}  // namespace

TEST_CASE("torch file: layout, checksums and bytes of what is written, at any place in a file") {
  const TemporaryFolder folder;
  for (const std::vector<std::size_t>& sizes : std::vector<std::vector<std::size_t>>{
           {}, {0}, {5, 0, 1000}, {kBlock, kBlock + 1, 3 * kBlock, 1}, {2 * kBlock + 12345}}) {
    for (const std::size_t before : {0, 77}) {
      std::vector<std::vector<std::byte>> storages;
      for (const std::size_t nbytes : sizes) {
        storages.push_back(random_bytes(nbytes, static_cast<unsigned>(nbytes)));
      }
      OutputFile out(folder.path() / "file");
      out.write(std::string(before, 'x'));
      const archive::Layout layout = write_file(out, storages);
      CHECK(out.position() == before + layout.nbytes);
      out.close();

      const auto file = std::make_shared<InputFile>(folder.path() / "file");
      const TorchFile read(file, before, layout.nbytes);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const torch::TensorRef tensor = read.tensor(*read.root().find(std::to_string(i)));
        CHECK(tensor.bytes.offset == before + layout.offsets[i]);
        CHECK(tensor.bytes.record_offset == tensor.bytes.offset);
        CHECK(tensor.bytes.record_nbytes == sizes[i]);
        CHECK(tensor.bytes.record_crc32 == crc32(0, storages[i]));
        const auto found = values_of<std::byte>(read, tensor);
        CHECK(found == storages[i]);
        std::vector<std::uint32_t> blocks;
        for (std::size_t at = 0; sizes[i] > kBlock && at < sizes[i]; at += kBlock) {
          blocks.push_back(crc32(0, std::span(found).subspan(at, std::min(kBlock, sizes[i] - at))));
        }
        CHECK(tensor.bytes.blocks == blocks);
      }
    }
  }
}

TEST_CASE("torch file: the layout of storages of many gigabytes counts their checksums") {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  const archive::Layout layout = torch::archive_layout(100, std::vector{5 * kGiB, kGiB, 5 * kGiB});
  REQUIRE(layout.offsets.size() == 3);
  CHECK(layout.offsets[1] - layout.offsets[0] >= 5 * kGiB + 4 * (5 * kGiB / kBlock));
  CHECK(layout.offsets[2] - layout.offsets[1] >= kGiB + 4 * (kGiB / kBlock));
  CHECK(layout.offsets[2] - layout.offsets[1] < kGiB + 4 * (kGiB / kBlock) + 1024);
  CHECK(layout.nbytes < 11 * kGiB + 4 * (11 * kGiB / kBlock) + 8192);
}

TEST_CASE("torch file: writing the same value twice gives the same bytes") {
  const TemporaryFolder folder;
  std::string texts[2];
  for (std::string& text : texts) {
    OutputFile out(folder.path() / "file");
    write_file(out, {random_bytes(1000, 1), random_bytes(kBlock + 5, 2)});
    out.close();
    text = acc::test::file_text((folder.path() / "file").string());
  }
  CHECK(texts[0] == texts[1]);
}

TEST_CASE("torch file: files of torch with views, parameters and newer dtypes are read") {
  const TorchFile file{std::filesystem::path(kData + "tensors.pt")};
  const auto at = [&](const char* name) -> const pickle::Value& { return *file.root().find(name); };
  const torch::TensorRef matrix = file.tensor(at("matrix")), rows = file.tensor(at("rows"));
  CHECK(matrix.shape == Shape{4, 6});
  CHECK(rows.shape == Shape{2, 6});
  CHECK(rows.bytes.offset == matrix.bytes.offset + 24);
  CHECK(rows.bytes.record_offset == matrix.bytes.offset);
  CHECK(rows.bytes.record_nbytes == 96);
  CHECK(values_of<float>(file, rows)[0] == 6.0F);
  CHECK(crc32(0, values_of<std::byte>(file, matrix)) == matrix.bytes.record_crc32);
  CHECK(file.tensor(at("brain")).dtype == Dtype::bf16);
  CHECK(file.tensor(at("small")).dtype == Dtype::f8_e4m3);
  CHECK(TorchFile::is_tensor(at("parameter")));
  CHECK(file.tensor(at("parameter")).shape.empty());
  CHECK(values_of<float>(file, file.tensor(at("parameter")))[0] == 2.5F);
  CHECK(!TorchFile::is_tensor(file.root()));

  const torch::TensorRef turned = file.tensor(at("turned"));
  CHECK(turned.shape == Shape{6, 4});
  CHECK(turned.strides == Shape{1, 6});
  CHECK(turned.bytes.nbytes == matrix.bytes.nbytes);
  CHECK(matrix.strides.empty());
  const std::string refused = refusal([&] { (void)file.row_major_tensor(at("turned")); });
  CHECK(refused.find("tensors.pt: a tensor of shape [6, 4] has strides [1, 6]") != refused.npos);
  const std::string none = refusal([&] { (void)file.tensor(file.root()); });
  CHECK(none.find("expected a tensor, found a dict") != none.npos);
}

TEST_CASE("torch file: random states are read, with numpy arrays as plain data") {
  const TorchFile file{std::filesystem::path(kData + "random_states.pkl")};
  CHECK(file.root().find("step")->integer == 3);
  CHECK(file.root().find("random_state")->items[1]->items.size() == 625);
  const pickle::Value& array = *file.root().find("numpy_random_seed")->items[1];
  CHECK(array.describe() == "a numpy._core.multiarray._reconstruct object");
  CHECK(file.tensor(*file.root().find("torch_manual_seed")).dtype == Dtype::u8);
}

TEST_CASE("torch file: a truncated or changed file is an Error with file and entry") {
  const TemporaryFolder folder;
  const std::string whole = acc::test::file_text(kData + "tensors.pt");
  for (std::size_t size = 0; size < whole.size(); size += 13) {
    const auto path = changed(folder, "cut.pt", whole.substr(0, size));
    CHECK(refusal([&] { TorchFile{path}; }).starts_with(path.string()));
  }
  std::mt19937 generator(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    bytes[generator() % bytes.size()] = static_cast<char>(generator());
    const auto path = changed(folder, "changed.pt", bytes);
    refusal([&] {
      const TorchFile file{path};
      for (const pickle::Value* value : file.root().pairs()) {
        if (TorchFile::is_tensor(*value)) {
          (void)file.tensor(*value);
        }
      }
    });
  }
  // A byte of the pickle: the checksum of its record detects the change.
  std::string bytes = whole;
  bytes[bytes.find("matrix")] = 'M';
  const auto path = changed(folder, "damaged.pt", bytes);
  const auto file = std::make_shared<InputFile>(path);
  const std::string fault = refusal([&] { TorchFile(file, 0, bytes.size(), "entry model.x"); });
  CHECK(fault == path.string() +
                     ", entry model.x: damaged: the checksum of record data.pkl does not match its "
                     "bytes");
  const std::string outside = refusal([&] { TorchFile(file, 100, bytes.size(), "entry"); });
  CHECK(outside.find("truncated") != outside.npos);
}

TEST_CASE("torch file: tensors that do not fit their storage are refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  const struct {
    const char* what;
    std::int64_t offset;
    Shape shape, strides;
    const char* storage_class;
    const char* key;
    const char* message;
  } kCases[] = {
      {"fits", 4, {2, 2}, {2, 1}, "FloatStorage", "0", ""},
      {"one dimension's stride is free", 0, {1, 8}, {99, 1}, "FloatStorage", "0", ""},
      {"none has strides", 0, {0, 8}, {5, 5}, "FloatStorage", "0", ""},
      {"beyond", 5, {2, 2}, {2, 1}, "FloatStorage", "0", "needs 16 bytes from byte 20 of record"},
      {"before", -1, {2, 2}, {2, 1}, "FloatStorage", "0", "at element -1"},
      {"far", INT64_MAX, {2}, {1}, "DoubleStorage", "0", "at element 9223372036854775807"},
      {"negative", 0, {-2}, {1}, "FloatStorage", "0", "[-2]"},
      {"large", 0, {1LL << 40, 1LL << 40}, {1LL << 40, 1}, "FloatStorage", "0", "a tensor"},
      {"few strides", 0, {2, 2}, {1}, "FloatStorage", "0", "strides [1]"},
      {"turned", 0, {2, 4}, {1, 2}, "FloatStorage", "0", ""},
      {"repeated", 0, {1000, 2}, {0, 1}, "FloatStorage", "0", ""},
      {"turned beyond", 0, {2, 2}, {7, 2}, "FloatStorage", "0", "needs 40 bytes from byte 0"},
      {"backwards", 3, {4}, {-1}, "FloatStorage", "0", "strides [-1]"},
      {"far apart", 0, {3, 2}, {INT64_MAX, 1}, "FloatStorage", "0", "at element 0"},
      {"repeated without end", 0, {1LL << 40}, {0}, "FloatStorage", "0", "is too large"},
      {"class", 0, {1}, {1}, "Size", "0", "in a storage of class torch.Size"},
      {"key", 0, {1}, {1}, "FloatStorage", "7", "no record data/7"},
  };
  for (const auto& row : kCases) {
    CAPTURE(row.what);
    pickle::Writer pickled;
    pickled.global("torch._utils", "_rebuild_tensor_v2").begin_tuple().begin_tuple();
    pickled.text("storage").global("torch", row.storage_class).text(row.key).text("cpu").integer(8);
    pickled.end_tuple().persistent().integer(row.offset).begin_tuple();
    for (const std::int64_t n : row.shape) {
      pickled.integer(n);
    }
    pickled.end_tuple().begin_tuple();
    for (const std::int64_t n : row.strides) {
      pickled.integer(n);
    }
    pickled.end_tuple().boolean(false).end_tuple().reduce();
    OutputFile out(path);
    torch::TorchFileWriter writer(out, pickled.finish());
    writer.storage(32, [](const torch::Sink& sink) { sink(random_bytes(32, 1)); });
    writer.finish();
    out.close();
    const TorchFile file(path);
    const std::string fault = refusal([&] { (void)file.tensor(file.root()); });
    if (*row.message == '\0') {
      CHECK(fault.empty());
    } else {
      CHECK_MESSAGE(fault.find(row.message) != fault.npos, fault);
      CHECK(fault.starts_with(path.string()));
    }
  }
}

TEST_CASE("torch file: the form without zip and foreign archives are refused by name") {
  const TemporaryFolder folder;
  const std::string magic("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15);
  const auto legacy = changed(folder, "legacy.pt", magic + std::string(500, 'x'));
  CHECK(refusal([&] { TorchFile{legacy}; }).find("older form without zip") != std::string::npos);

  const auto path = folder.path() / "other.zip";
  OutputFile out(path);
  archive::Writer writer(out);
  writer.add("readme", "text");
  writer.finish();
  out.close();
  CHECK(refusal([&] { TorchFile{path}; }).find("no record data.pkl") != std::string::npos);
}

TEST_CASE("torch file: a wrong number of block checksums is refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  OutputFile out(path);
  archive::Writer writer(out);
  writer.add("data.pkl", torch::tensor_pickle({Dtype::u8, {10}}));
  writer.add("data/0", "0123456789");
  writer.add(".acc/crc32/0", "12345678");
  writer.finish();
  out.close();
  const TorchFile file(path);
  CHECK(refusal([&] {
          (void)file.tensor(file.root());
        }).find(".acc/crc32/0 has 8 bytes, expected checksums of 1 blocks") != std::string::npos);
}
