#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/tensor/dtype.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

/// Weights as one safetensors file, or as several with an index (checkpoint-formats 3, 4).
namespace acc::checkpoint {

/// A file, or a folder with `*.safetensors.index.json` or with one file. Throws Error(config).
Catalog read_safetensors(const std::filesystem::path& path);

struct NamedTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// Which file each tensor goes to: in the order of names, as many as fit into `max_shard_nbytes`
/// (0: one file), one that is larger alone (save_model's rule).
struct SafetensorsPlan {
  struct File {
    std::string name;  ///< "model.safetensors", or "model-00001-of-00003.safetensors"
    std::vector<NamedTensor> tensors;
  };
  std::vector<File> files;
  std::string index;  ///< content of "model.safetensors.index.json"; empty where there is one file
};
SafetensorsPlan plan_safetensors(std::vector<NamedTensor> tensors, std::uint64_t max_shard_nbytes,
                                 const std::string& stem = "model");

}  // namespace acc::checkpoint
