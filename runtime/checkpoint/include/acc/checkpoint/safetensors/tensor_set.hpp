// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/safetensors/header.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// Weights in one safetensors file, or in several files with an index
/// (docs/formats/safetensors.md).
namespace acc::checkpoint {

inline constexpr const char* kSafetensorsIndex = ".safetensors.index.json";

/// Reads the headers of a file, or of a folder with one `*.safetensors.index.json` or with a single
/// file. No tensor is read, and their bytes have no checksums. The second names that save_model of
/// safetensors writes to the metadata are names of the catalog too, with the same piece. Throws
/// Error(config) if a file is missing, or if the index and the files disagree.
Catalog read_safetensors(const InputPath& path);

/// Assignment of tensors to files, in the order of their names. Each file takes as many tensors as
/// fit into `max_shard_nbytes` (0: all in one file); a larger tensor gets its own file. This is the
/// rule of huggingface_hub, which save_model of Accelerate uses. Within a file, tensors are in
/// the order of safetensors' own writer: by dtype, larger elements first, so that all are aligned.
struct SafetensorsPlan {
  struct File {
    std::string name;  ///< "model.safetensors", or "model-00001-of-00003.safetensors"
    std::vector<NamedTensor> tensors;
  };
  std::vector<File> files;
  std::string index;  ///< content of "model.safetensors.index.json"; empty for a single file
};
SafetensorsPlan plan_safetensors(std::vector<NamedTensor> tensors, std::uint64_t max_shard_nbytes,
                                 const std::string& stem = "model");

}  // namespace acc::checkpoint
