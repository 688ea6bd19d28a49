// SPDX-License-Identifier: Apache-2.0
// Helper program of dcp_test.py.
//   dcp_folder write DIR SHARDS WORLD   writes a torch DCP folder as WORLD ranks do
//   dcp_folder read DIR OUT             writes all tensors of the folder, under their names in DIR,
//                                       to the safetensors file OUT; prints its other data as JSON

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "support/safetensors_file.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using namespace acc::checkpoint::dcp;
using acc::test::SafetensorsWriter;

namespace {

struct Row {
  const char* name;
  Dtype dtype;
  Shape shape;
  bool rank_zero_only = false;
};

// The same list is in dcp_test.py.
const Row kTensors[] = {
    {"0.weight", Dtype::f32, {7, 13}}, {"0.bias", Dtype::f32, {7}},
    {"2.weight", Dtype::f32, {5, 7}},  {"2.bias", Dtype::f32, {5}},
    {"half", Dtype::f16, {9, 3, 2}},   {"brain", Dtype::bf16, {200, 1000}},
    {"double", Dtype::f64, {11}},      {"long", Dtype::i64, {2, 2}, true},
    {"int", Dtype::i32, {4}},          {"short", Dtype::i16, {3, 5}},
    {"char", Dtype::i8, {10}},         {"byte", Dtype::u8, {300}},
    {"bool", Dtype::boolean, {6}},     {"eight", Dtype::f8_e4m3, {8, 4}},
    {"scalar", Dtype::f32, {}, true},  {"sharded_scalar", Dtype::f32, {}},
    {"empty", Dtype::f32, {0, 3}},     {"large", Dtype::f32, {3, 100'003}},
};

/// Returns byte i of tensor t, without bits that a bool cannot have. The same formula is in
/// dcp_test.py.
std::byte pattern(std::size_t tensor, std::size_t i, Dtype dtype) {
  const std::size_t value = (i * 131 + i / 251 * 7 + tensor * 17 + 1) % 251;
  return static_cast<std::byte>(dtype == Dtype::boolean ? value % 2 : value);
}

/// The plan of a folder with every dtype, a tied weight, and values that are not tensors.
/// Each tensor is a separate array, except the first four, which form a unit, and "tied", the
/// second name of 0.weight.
FolderPlan plan_of(int shards, int world_size) {
  FolderPlan plan;
  std::vector<CutArray> arrays;
  for (const Row& row : kTensors) {
    const std::size_t tensor = plan.tensors.size();
    plan.tensors.push_back({.name = std::string("model.") + row.name,
                            .path = {"model", row.name},
                            .dtype = row.dtype,
                            .shape = row.shape});
    if (tensor == 0 || tensor > 3) {
      arrays.push_back({.members = {},
                        .shards = row.rank_zero_only ? 1 : shards,
                        .rank_zero_only = row.rank_zero_only});
    }
    CutArray& array = arrays.back();
    array.members.push_back({tensor, array.padded_numel});
    array.padded_numel += numel_of(row.shape);
  }
  arrays[0].members.push_back({plan.tensors.size(), 0});
  plan.tensors.push_back({.name = "model.tied",
                          .path = {"model", "tied"},
                          .dtype = Dtype::f32,
                          .shape = kTensors[0].shape});
  for (CutArray& array : arrays) {
    array.padded_numel = (array.padded_numel + array.shards - 1) / array.shards * array.shards;
  }
  plan.values = {
      {.name = "model.groups.0.lr",
       .path = {"model", "groups", std::int64_t{0}, "lr"},
       .pickle = pickle::Writer().real(0.001).finish(),
       .rank = world_size - 1},
      {.name = "model.groups.0.betas",
       .path = {"model", "groups", std::int64_t{0}, "betas"},
       .pickle = pickle::Writer().begin_tuple().real(0.9).real(0.95).end_tuple().finish(),
       .rank = 0},
      {.name = "model.text",
       .path = {"model", "text"},
       .pickle = pickle::Writer().text("größer").finish(),
       .rank = 0}};
  plan.world_size = world_size;
  plan.rule = cut_arrays(arrays, plan.tensors, world_size);
  return plan;
}

void write(const std::filesystem::path& folder, int shards, int world_size) {
  const FolderPlan plan = plan_of(shards, world_size);
  const auto fill = [&](const PlannedChunk& chunk, const torch::Sink& sink) {
    const PlannedTensor& tensor = plan.tensors[chunk.tensor];
    const std::size_t size = size_of(tensor.dtype);
    const std::size_t like = tensor.name == "model.tied" ? 0 : chunk.tensor;
    const auto first =
        static_cast<std::size_t>(element_in_tensor(tensor.shape, chunk.box, 0)) * size;
    std::vector<std::byte> bytes(static_cast<std::size_t>(chunk.box.numel()) * size);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = pattern(like, first + i, tensor.dtype);
    }
    sink(bytes);
  };
  std::filesystem::create_directories(folder);
  for (int rank = 0; rank < world_size; ++rank) {
    write_rank_file(folder, plan, rank, fill);
  }
  write_metadata_file(folder, plan);
}

void read(const std::filesystem::path& folder, const std::filesystem::path& out) {
  Catalog catalog;
  TrainingState training;
  Provenance provenance;
  if (std::filesystem::exists(folder / ".metadata")) {
    read_folder(folder, catalog, training, provenance);
  } else {
    read_hugging_face(folder, catalog, provenance);
  }
  catalog.index();
  TensorReader reader(catalog);
  std::vector<NamedTensor> tensors;
  nlohmann::json names;
  for (const StoredTensor& tensor : catalog.tensors) {
    tensors.push_back({tensor.stored_name, tensor.dtype, tensor.shape});
    names[tensor.stored_name] = {tensor.name, tensor.kind};
  }
  SafetensorsWriter writer(out, tensors);
  for (const StoredTensor& tensor : catalog.tensors) {
    const std::int64_t numel = numel_of(tensor.shape);
    std::vector<std::byte> bytes(static_cast<std::size_t>(numel) * size_of(tensor.dtype));
    reader.read(tensor, 0, numel, tensor.dtype, bytes.data());
    writer.append(bytes);
  }
  writer.commit();
  nlohmann::json rest = {{"names", names}, {"world_size", provenance.world_size}};
  if (training.step) {
    rest["step"] = *training.step;
  }
  for (const StoredGroup& group : training.groups) {
    rest["groups"].push_back(
        {{"values", group.hyper_parameters}, {"parameters", group.parameters}});
  }
  std::printf("%s\n", rest.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (argc == 5 && arguments[0] == "write") {
      write(arguments[1], std::stoi(arguments[2]), std::stoi(arguments[3]));
    } else if (argc == 4 && arguments[0] == "read") {
      read(arguments[1], arguments[2]);
    } else {
      std::fprintf(stderr, "usage: dcp_folder write DIR SHARDS WORLD | read DIR OUT\n");
      return 2;
    }
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "dcp_folder: %s\n", error.what());
    return acc::exit_status(error);
  }
}
