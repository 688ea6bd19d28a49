// SPDX-License-Identifier: Apache-2.0
// Converts files of other libraries, for the tests with the real libraries.
//   peer_files accelerate IN OUT              rewrites an unsharded save folder of Accelerate as we
//                                             save it with FULL_STATE_DICT
//   peer_files deepspeed IN OUT STAGE RANKS   writes a DeepSpeed checkpoint from a DeepSpeed
//                                             checkpoint or a .safetensors file

#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/catalog/parameter_names.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "deepspeed/deepspeed.hpp"

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
namespace accelerate = acc::checkpoint::accelerate;
using namespace acc::checkpoint;

void read_weights(const fs::path& path, Catalog& catalog) {
  if (path.extension() == ".safetensors") {
    catalog = read_safetensors(path);
    return;
  }
  TrainingState training;
  Provenance provenance;
  accelerate::read_torch_file(path, catalog, training, provenance);
}

std::vector<std::byte> bytes_of(TensorReader& reader, const StoredTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(numel_of(tensor.shape)) *
                               size_of(tensor.dtype));
  reader.read(tensor, 0, numel_of(tensor.shape), tensor.dtype, bytes.data());
  return bytes;
}

void copy_accelerate(const fs::path& in, const fs::path& out) {
  Catalog catalog;
  read_weights(accelerate::find_model(in, 0).value(), catalog);
  std::vector<accelerate::FullTensor> weights;
  for (const StoredTensor& tensor : catalog.tensors) {
    weights.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const Catalog model = catalog;
  TensorReader model_reader(model);
  accelerate::write_model_file(out / accelerate::model_file(0), weights,
                               [&](std::size_t i, const torch::Sink& sink) {
                                 sink(bytes_of(model_reader, model.tensors[i]));
                               });
  TrainingState training;
  Provenance provenance;
  accelerate::read_torch_file(accelerate::find_optimizer(in, 0).value(), catalog, training,
                              provenance);
  name_parameters(catalog, training);
  std::vector<accelerate::FullMoment> moments;
  std::vector<const StoredTensor*> sources;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (tensor.kind != "param" && tensor.kind != "step") {
      moments.push_back({tensor.name, tensor.kind, tensor.dtype, tensor.shape});
      sources.push_back(&tensor);
    }
  }
  TensorReader reader(catalog);
  accelerate::write_optimizer_file(
      out / accelerate::optimizer_file(0), training.optimizer, training.step.value_or(0),
      training.groups, moments,
      [&](std::size_t i, const torch::Sink& sink) { sink(bytes_of(reader, *sources[i])); });

  accelerate::write_scheduler(out / accelerate::scheduler_file(0),
                              accelerate::read_scheduler(in / accelerate::scheduler_file(0)));
  accelerate::write_scaler(out / accelerate::kScalerFile,
                           accelerate::read_scaler(in / accelerate::kScalerFile));
  accelerate::ProgramState values =
      accelerate::read_random_states(in / accelerate::random_states_file(0));
  accelerate::write_random_states(out / accelerate::random_states_file(0), 17, values);
  accelerate::write_custom(out / accelerate::custom_file(0),
                           accelerate::read_custom(in / accelerate::custom_file(0)));
}

void copy_deepspeed(const fs::path& in, const fs::path& out, int stage, int ranks) {
  Catalog catalog;
  TrainingState training;
  Provenance provenance;
  if (in.extension() == ".safetensors") {
    catalog = read_safetensors(in);
  } else {
    deepspeed::read_checkpoint(in, catalog, training, provenance);
  }
  TensorReader reader(catalog);
  deepspeed::write_checkpoint(out, catalog, reader, training,
                              {.stage = stage, .world_size = ranks, .tag = ""});
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.size() == 3 && args[0] == "accelerate") {
      copy_accelerate(args[1], args[2]);
    } else if (args.size() == 5 && args[0] == "deepspeed") {
      copy_deepspeed(args[1], args[2], std::stoi(args[3]), std::stoi(args[4]));
    } else {
      std::fprintf(stderr, "usage: see the source\n");
      return 2;
    }
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return acc::exit_status(error);
  }
  return 0;
}
