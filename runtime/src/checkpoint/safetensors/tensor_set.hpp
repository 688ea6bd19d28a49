#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/safetensors/header.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// Weights as one safetensors file, or as several with an index (checkpoint-formats 3, 4).
namespace acc::checkpoint {

inline constexpr const char* kSafetensorsIndex = ".safetensors.index.json";

/// A file, or a folder with one `*.safetensors.index.json` or with one file. No tensor is read, and
/// there is nothing to check its bytes by. Throws Error(config): what is missing, or on what index
/// and files disagree.
Catalog read_safetensors(const std::filesystem::path& path);

/// Which file each tensor goes to: in the order of names, as many as fit into `max_shard_nbytes`
/// (0: one file), one that is larger alone (huggingface_hub's rule, which save_model has). In a
/// file those with the largest elements come first, so that all are aligned.
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
