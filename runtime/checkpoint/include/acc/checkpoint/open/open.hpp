// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/files/manifest.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint {

/// Format of the checkpoint at a path.
enum class Format {
  safetensors,
  safetensors_set,
  torch_file,
  dcp,
  dcp_hugging_face,
  deepspeed,
  save_folder
};

/// Returns a name for messages: "torch DCP folder", …
std::string to_string(Format format);

/// Detects the format of a checkpoint by the files that exist (docs/formats/README.md): a
/// .safetensors file; a folder with an index of such files or with one of them; a .bin or .pt file;
/// a folder with .metadata; a folder of HuggingFaceStorageWriter; a DeepSpeed folder (with
/// `latest`, or the folder of one tag); a folder that Accelerate or we saved (its model and
/// optimizer have their old or new names). Throws Error(config) with the path, what was looked for
/// and what was found.
Format format_of(const InputPath& path);

/// Returns where the checkpoint of a path lies. That is the path itself, or "<path>.acc-new" if a
/// save was killed while it replaced the checkpoint, or the newest complete checkpoint if the path
/// is a folder of a series. Any other path is returned unchanged.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Tensors and state of a checkpoint of any format. For a save folder: those of the model and the
/// optimizer with number `index`.
struct Stored {
  InputPath path;  ///< as find_checkpoint returns it; to prove that it is unchanged
  Format format = Format::safetensors;
  Provenance provenance;
  Catalog catalog;  ///< parameters, and the optimizer's kinds if there are any
  TrainingState training;
  std::optional<Manifest> manifest;  ///< our manifest, if we wrote the checkpoint
};

/// Part of a checkpoint to open. Files of the other part are not touched.
enum class Want { weights, everything };

/// Opens what find_checkpoint returns for the path. Reads metadata only, no tensors: who has read
/// what it needs calls `path.check_unchanged`. Throws Error(config) with the file if anything is
/// damaged, incomplete (a tensor is not covered by its pieces) or not a checkpoint.
Stored open_checkpoint(const InputPath& path, Want want = Want::everything, int index = 0);

}  // namespace acc::checkpoint
