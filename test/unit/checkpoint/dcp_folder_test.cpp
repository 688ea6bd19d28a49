// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/dcp/metadata.hpp"
#include "acc/checkpoint/safetensors/header.hpp"
#include "support/errors.hpp"
#include "support/safetensors_file.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

using namespace acc::checkpoint;
using namespace acc::checkpoint::dcp;
using acc::test::SafetensorsWriter;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(ACC_TEST_DATA) / "checkpoints";

struct Read {
  Catalog catalog;
  TrainingState training;
  Provenance provenance;
};
Read read(const fs::path& folder) {
  Read read;
  read_folder(folder, read.catalog, read.training, read.provenance);
  read.catalog.index();
  return read;
}

/// Returns all bytes of a tensor, joined from its pieces.
std::string bytes_of(const Catalog& catalog, const StoredTensor& tensor) {
  const std::size_t size = size_of(tensor.dtype);
  std::string bytes(static_cast<std::size_t>(numel_of(tensor.shape)) * size, '\0');
  for (const StoredPiece& piece : tensor.pieces) {
    const auto file = std::make_shared<InputFile>(catalog.files.at(piece.file));
    std::uint64_t offset = piece.offset;
    if (piece.packing == Packing::archive) {
      const torch::TorchFile archive(file, piece.offset, piece.nbytes);
      const torch::TensorRef stored = archive.tensor(archive.root());
      CHECK(stored.shape == piece.box.sizes);
      CHECK(stored.dtype == tensor.dtype);
      offset = stored.bytes.offset;
    }
    std::vector<std::byte> read(static_cast<std::size_t>(piece.box.numel()) * size);
    file->read(offset, read);
    for_each_run(tensor.shape, piece.box, 0, numel_of(tensor.shape),
                 [&](std::int64_t in_box, std::int64_t in_tensor, std::int64_t numel) {
                   std::memcpy(bytes.data() + static_cast<std::size_t>(in_tensor) * size,
                               read.data() + static_cast<std::size_t>(in_box) * size,
                               static_cast<std::size_t>(numel) * size);
                 });
  }
  return bytes;
}

/// Returns the bytes of each tensor of a safetensors file, by name.
std::map<std::string, std::pair<Shape, std::string>> tensors_of(const fs::path& path) {
  const std::string content = acc::test::file_text(path);
  const SafetensorsHeader header = read_header(InputFile(path));
  std::map<std::string, std::pair<Shape, std::string>> tensors;
  for (const TensorEntry& entry : header.tensors) {
    tensors[entry.name] = {
        entry.shape, content.substr(header.data_begin + entry.begin, entry.end - entry.begin)};
  }
  return tensors;
}

std::string refusal(const fs::path& folder) {
  return acc::test::refusal([&] { return read(folder); });
}

PlannedTensor tensor(const std::string& name, Shape shape, Dtype dtype = Dtype::f32) {
  return {.name = "model." + name, .path = {"model", name}, .dtype = dtype, .shape = shape};
}

/// A plan with two units in the dtypes of moments, a tied name, a scalar and an empty tensor.
FolderPlan plan_of(int shards, int world_size) {
  FolderPlan plan;
  plan.tensors = {tensor("a", {13, 7}),  tensor("b", {5}, Dtype::bf16), tensor("c", {}),
                  tensor("d", {0, 3}),   tensor("tied", {13, 7}),       tensor("e", {3, 4, 5}),
                  tensor("f", {300'000})};
  plan.world_size = world_size;
  const auto padded = [&](std::int64_t numel) { return (numel + shards - 1) / shards * shards; };
  const std::vector<CutArray> arrays = {
      {.members = {{0, 0}, {4, 0}, {5, 91}, {3, 151}},
       .padded_numel = padded(151),
       .shards = shards},
      {.members = {{1, 0}}, .padded_numel = padded(5), .shards = shards},
      {.members = {{2, 0}}, .padded_numel = 1, .rank_zero_only = true},
      {.members = {{6, 0}}, .padded_numel = padded(300'000), .shards = shards}};
  plan.values = {{.name = "model.v",
                  .path = {"model", "v"},
                  .pickle = pickle::Writer().integer(5).finish(),
                  .rank = world_size - 1},
                 {.name = "model.w",
                  .path = {"model", "w"},
                  .pickle = pickle::Writer().text("text").finish(),
                  .rank = 0}};
  plan.rule = cut_arrays(arrays, plan.tensors, world_size);
  return plan;
}

/// The bytes of element i of array a are a mix of a and i.
void fill(const FolderPlan& plan, const PlannedChunk& chunk, const torch::Sink& sink) {
  const std::size_t size = size_of(plan.tensors[chunk.tensor].dtype);
  for (std::int64_t i = 0; i < chunk.box.numel(); ++i) {
    const std::uint64_t value =
        (static_cast<std::uint64_t>(chunk.source_begin + i) + 1) * 0x9e3779b97f4a7c15U +
        chunk.source;
    sink(std::as_bytes(std::span(&value, 1)).first(size));
  }
}

void write_all(const fs::path& folder, const FolderPlan& plan) {
  for (int rank = 0; rank < plan.world_size; ++rank) {
    const auto nbytes = write_rank_file(
        folder, plan, rank,
        [&](const PlannedChunk& chunk, const torch::Sink& sink) { fill(plan, chunk, sink); });
    CHECK(nbytes == fs::file_size(folder / file_name(rank)));
  }
  const WrittenMetadata written = write_metadata_file(folder, plan);
  CHECK(written.nbytes == fs::file_size(folder / kMetadataFile));
}

}  // namespace

TEST_CASE("torch's FSDP checkpoints are read with the values of their full files") {
  struct Case {
    const char* folder;
    const char* full;  // null: only names and shapes are compared
    std::size_t tensors;
  };
  const Case cases[] = {
      {"fsdp2_w4/pytorch_model_fsdp_0", "fsdp2_w4/model_full.safetensors", 29},
      {"fsdp2_w4/optimizer_0", "fsdp2_w4/optimizer_full.safetensors", 84},
      {"fsdp1_w4/pytorch_model_fsdp_0", "fsdp2_w4/model_full.safetensors", 29},
      {"fsdp1_w4/optimizer_0", "fsdp2_w4/optimizer_full.safetensors", 84},
  };
  for (const Case& c : cases) {
    CAPTURE(c.folder);
    const Read stored = read(kGolden / c.folder);
    CHECK(stored.provenance.format == "torch DCP");
    CHECK(stored.provenance.world_size == 4);
    CHECK(stored.catalog.files.size() == 4);
    const auto full = tensors_of(kGolden / c.full);
    CHECK(full.size() == c.tensors);
    REQUIRE(stored.catalog.tensors.size() == c.tensors);
    const bool bitwise = std::string(c.folder).starts_with("fsdp2");
    for (const StoredTensor& tensor : stored.catalog.tensors) {
      CAPTURE(tensor.stored_name);
      const std::string name = tensor.kind == "param"
                                   ? tensor.name
                                   : "optimizer.state." + tensor.name + "." + tensor.kind;
      REQUIRE(full.contains(name));
      CHECK(tensor.shape == full.at(name).first);
      CHECK(tensor.dtype == Dtype::f32);
      const std::string bytes = bytes_of(stored.catalog, tensor);
      CHECK((!bitwise || bytes == full.at(name).second));
    }
  }
}

TEST_CASE("chunks, steps and groups of torch's FSDP checkpoints") {
  const Read model = read(kGolden / "fsdp2_w4/pytorch_model_fsdp_0");
  const StoredTensor& positions = model.catalog.at("transformer.wpe.weight", "param", "test");
  CHECK(positions.stored_name == "model.transformer.wpe.weight");
  std::vector<std::int64_t> rows;
  for (const StoredPiece& piece : positions.pieces) {
    rows.push_back(piece.box.sizes[0]);
  }
  CHECK(rows == std::vector<std::int64_t>{8, 8, 8, 6});
  CHECK(!model.training.step);
  for (const char* writer : {"fsdp1_w4", "fsdp2_w4"}) {
    const Read optimizer = read(kGolden / writer / "optimizer_0");
    CHECK(optimizer.training.step == 3);
    REQUIRE(optimizer.training.groups.size() == 2);
    const StoredGroup& group = optimizer.training.groups[0];
    CHECK(group.hyper_parameters.at("lr") == 1e-3);
    CHECK(group.hyper_parameters.at("weight_decay") == 0.1);
    CHECK(group.parameters.size() + optimizer.training.groups[1].parameters.size() == 28);
    CHECK(optimizer.catalog.find("transformer.h.0.attn.c_attn.weight", "exp_avg_sq") != nullptr);
    CHECK(optimizer.catalog.find("transformer.h.0.attn.c_attn.weight", "step")->shape.empty());
  }
}

TEST_CASE("files are as planned, and are read back") {
  struct World {
    int shards, size;
  };
  for (const World world : {World{1, 1}, {3, 3}, {2, 6}, {1, 4}, {7, 7}}) {
    CAPTURE(world.size);
    const acc::test::TemporaryFolder folder;
    const FolderPlan plan = plan_of(world.shards, world.size);
    write_all(folder.path(), plan);
    const std::string content = acc::test::file_text(folder.path() / kMetadataFile);
    const Metadata metadata = parse_metadata(std::as_bytes(std::span(content)), "metadata");
    // .metadata must have what each rank planned for itself.
    std::set<std::tuple<std::string, std::uint64_t, std::uint64_t>> in_plan, in_metadata;
    for (int rank = 0; rank < world.size; ++rank) {
      const FilePlan file = plan_file(plan, rank);
      for (const auto* slots : {&file.value_slots, &file.chunk_slots}) {
        for (const FilePlan::Slot& slot : *slots) {
          in_plan.emplace(file.name, slot.offset, slot.nbytes);
        }
      }
    }
    for (const Entry& entry : metadata.entries) {
      for (const Chunk& chunk : entry.chunks) {
        in_metadata.emplace(chunk.place.file, chunk.place.offset, chunk.place.nbytes);
      }
      if (!entry.is_tensor) {
        in_metadata.emplace(entry.value.file, entry.value.offset, entry.value.nbytes);
      }
    }
    CHECK(in_plan == in_metadata);
    const Read stored = read(folder.path());
    REQUIRE(stored.catalog.tensors.size() == plan.tensors.size());
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      const StoredTensor& tensor = stored.catalog.tensors[i];
      CAPTURE(tensor.name);
      CHECK(tensor.stored_name == plan.tensors[i].name);
      CHECK(tensor.dtype == plan.tensors[i].dtype);
      CHECK(tensor.shape == plan.tensors[i].shape);
      std::string expected;
      plan.rule->for_each_chunk(i, [&](int, const PlannedChunk& chunk) {
        fill(plan, chunk, [&](std::span<const std::byte> bytes) {
          expected.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        });
      });
      CHECK(bytes_of(stored.catalog, tensor) == expected);
    }
    CHECK(bytes_of(stored.catalog, stored.catalog.at("tied", "param", "")) ==
          bytes_of(stored.catalog, stored.catalog.at("a", "param", "")));
  }
}

TEST_CASE("a source with too few or too many bytes is an internal error, and no file is left") {
  const acc::test::TemporaryFolder folder;
  const FolderPlan plan = plan_of(1, 1);
  const std::vector<std::byte> bytes(10);
  CHECK_THROWS_AS(
      write_rank_file(folder.path(), plan, 0,
                      [&](const PlannedChunk&, const torch::Sink& sink) { sink(bytes); }),
      acc::Error);
  CHECK(!fs::exists(folder.path() / file_name(0)));
}

TEST_CASE("the files of a folder may lie in folders of it") {
  const acc::test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "optimizer";
  fs::copy(kGolden / "fsdp2_w4/optimizer_0", folder);
  fs::create_directory(folder / "d");
  std::string metadata = acc::test::file_text(folder / ".metadata");
  for (const std::string rank : {"0", "1", "2", "3"}) {
    const std::string name = "__" + rank + "_0.distcp";
    const std::string moved = "d/" + rank + "_0.distcp";
    fs::rename(folder / name, folder / moved);
    for (auto at = metadata.find(name); at != std::string::npos; at = metadata.find(name)) {
      metadata.replace(at, name.size(), moved);
    }
  }
  acc::test::write_text(folder / ".metadata", metadata);
  CHECK(read(folder).training.step == read(kGolden / "fsdp2_w4/optimizer_0").training.step);
}

TEST_CASE("a damaged step count is refused") {
  const acc::test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "dcp";
  fs::copy(kGolden / "fsdp2_w4/optimizer_0", folder);
  Read read;
  read_folder(folder, read.catalog, read.training, read.provenance);
  const auto step = std::ranges::find(read.catalog.tensors, "step", &StoredTensor::kind);
  REQUIRE(step != read.catalog.tensors.end());
  const StoredPiece& piece = step->pieces.at(0);
  const fs::path path = read.catalog.files[piece.file];
  const torch::TorchFile archive(std::make_shared<InputFile>(path), piece.offset, piece.nbytes);
  const std::uint64_t at = archive.tensor(archive.root()).bytes.offset;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at + 2));
  file.put('\x80');  // 3.0F becomes 4.0F
  file.close();
  const std::string error = refusal(folder);
  CAPTURE(error);
  CHECK(error.starts_with(path.string() + ": key '" + step->stored_name + "': damaged"));
}

TEST_CASE("missing and truncated files of a folder are named") {
  const acc::test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "dcp";
  fs::copy(kGolden / "fsdp2_w4/pytorch_model_fsdp_0", folder);
  SUBCASE("a file") {
    fs::remove(folder / "__2_0.distcp");
    CHECK(
        refusal(folder).starts_with((folder / "__2_0.distcp").string() + ": is missing; 'model."));
  }
  SUBCASE("a file's end") {
    fs::resize_file(folder / "__3_0.distcp", 75'000);
    const std::string error = refusal(folder);
    CAPTURE(error);
    CHECK(error.starts_with((folder / "__3_0.distcp").string() + ": truncated: 'model."));
    CHECK(error.ends_with("the file has 75000"));
  }
  SUBCASE(".metadata") {
    fs::remove(folder / kMetadataFile);
    CHECK(refusal(folder).starts_with(folder.string() + ": no .metadata in it"));
  }
  SUBCASE("coordination") {
    fs::rename(folder / kMetadataFile, folder / "__0.metadata");
    const std::string error = refusal(folder);
    CAPTURE(error);
    CHECK(error.find("without coordination between ranks ('__0.metadata')") != std::string::npos);
  }
  SUBCASE("the folder") {
    CHECK(refusal(temporary.path() / "other") ==
          (temporary.path() / "other").string() + ": is not a folder");
  }
}

namespace {

void write_shard(const fs::path& path, const std::string& info,
                 const std::vector<NamedTensor>& tensors, float first) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!info.empty()) {
    metadata["DCP_SHARDING_INFO"] = info;
  }
  SafetensorsWriter writer(path, tensors, metadata);
  for (const NamedTensor& tensor : tensors) {
    std::vector<float> values(static_cast<std::size_t>(numel_of(tensor.shape)), first++);
    writer.append(values);
  }
  writer.commit();
}

}  // namespace

TEST_CASE("safetensors shards of HuggingFaceStorageWriter are joined to whole tensors") {
  const acc::test::TemporaryFolder folder;
  const auto shard = [&](int rank) {
    return folder.path() /
           ("shard-0000" + std::to_string(rank) + "-model-00001-of-00001.safetensors");
  };
  write_shard(shard(1), R"({"a": {"saved_offsets": [0, 0]}, "b": {"saved_offsets": [0]}})",
              {{"a", Dtype::f32, {2, 3}}, {"b", Dtype::f32, {4}}}, 1.0F);
  const auto read_all = [&] {
    Read read;
    read_hugging_face(folder.path(), read.catalog, read.provenance);
    read.catalog.index();
    return read;
  };
  SUBCASE("complete") {
    write_shard(shard(2), R"({"a": {"saved_offsets": [2, 0]}})", {{"a", Dtype::f32, {1, 3}}}, 7.0F);
    const Read read = read_all();
    REQUIRE(read.catalog.tensors.size() == 2);
    const StoredTensor& a = read.catalog.at("a", "param", "");
    CHECK(a.shape == Shape{3, 3});
    const std::string bytes = bytes_of(read.catalog, a);
    std::vector<float> values(9);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    CHECK(values == std::vector<float>{1, 1, 1, 1, 1, 1, 7, 7, 7});
  }
  struct Case {
    const char* info;
    Dtype dtype;
    const char* message;
  };
  const std::string deep =
      R"({"a": {"saved_offsets": )" + std::string(300'000, '[') + std::string(300'000, ']') + "}}";
  const Case cases[] = {
      {R"({"a": {"saved_offsets": [3, 0]}})", Dtype::f32, "rows 2:3 are in no piece"},
      {R"({"a": {"saved_offsets": [1, 0]}})", Dtype::f32, "overlap"},
      {R"({"b": {"saved_offsets": [1, 0]}})", Dtype::f32, "has no saved_offsets of tensor 'a'"},
      {R"({"a": {"saved_offsets": [1]}})", Dtype::f32, "has saved_offsets [1] of tensor 'a'"},
      {R"({"a": {"saved_offsets": [-1, 0]}})", Dtype::f32,
       "has saved_offsets [-1,0] of tensor 'a'"},
      {R"({"a": {"saved_offsets": [9223372036854775807, 0]}})", Dtype::f32, "has saved_offsets"},
      {R"([)", Dtype::f32, "is not a JSON object"},
      {deep.c_str(), Dtype::f32, "is nested deeper than 3 levels"},
      {R"({"a": {"saved_offsets": [2, 0]}})", Dtype::bf16, "does not match another shard's"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.info).substr(0, 80));
    write_shard(shard(2), c.info, {{"a", c.dtype, {1, 3}}}, 7.0F);
    std::string error;
    try {
      read_all();
    } catch (const acc::Error& e) {
      error = e.what();
    }
    CAPTURE(error);
    CHECK(error.find(c.message) != std::string::npos);
  }
}
