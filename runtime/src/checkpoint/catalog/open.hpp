#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/files/manifest.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint {

/// What a path holds.
enum class Format {
  safetensors,
  safetensors_set,
  torch_file,
  dcp,
  dcp_hugging_face,
  deepspeed,
  save_folder
};

/// "torch DCP folder", …
std::string to_string(Format format);

/// Tells formats apart by what is there (checkpoint-formats 1, 2, 3, 4, 5): a .safetensors file, a
/// folder with an index of such or with one of them, a .bin or .pt file, a folder with .metadata, a
/// folder of HuggingFaceStorageWriter's, a DeepSpeed folder (with `latest`, or a tag's own), a
/// folder that Accelerate or we saved (its model and optimizer are in it under their names, old or
/// new). Throws Error(config): the path, what was looked for and what is there.
Format format_of(const std::filesystem::path& path);

/// Where the checkpoint is that a path names: there, or, where a save was killed over it, under its
/// older name; of a folder that is no checkpoint and holds a series of them, the newest complete.
/// A path that is none of these comes back as it is.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Tensors and state of a checkpoint of any format. In a save folder: those of model and optimizer
/// number `index`.
struct Stored {
  std::filesystem::path path;  ///< as find_checkpoint gives it
  Format format = Format::safetensors;
  Provenance provenance;
  Catalog catalog;  ///< parameters, and the optimizer's kinds where it has them
  TrainingState training;
  std::optional<Manifest> manifest;  ///< ours, where we wrote it
};

/// Which part of a checkpoint is wanted; the other's files are not touched.
enum class Want { weights, everything };

/// Of what find_checkpoint gives. Reads the metadata, no tensor. Throws Error(config) that names
/// the file for whatever is wrong: damaged, incomplete (tensors not covered), not a checkpoint.
Stored open_checkpoint(const std::filesystem::path& path, Want want = Want::everything,
                       int index = 0);

}  // namespace acc::checkpoint
