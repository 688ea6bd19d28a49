// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/convert/convert.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "convert/dcp_folder.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// An output that consists of DCP folders: either one alone, or a save folder
/// (docs/formats/accelerate.md) with several of them, other files and our manifest.
class SaveFolder {
 public:
  /// `from`: the checkpoint of which the output is made.
  SaveFolder(InputPath from, std::filesystem::path out, const Options& options)
      : from_(std::move(from)), out_(std::move(out)), options_(options) {}

  /// `name`: "optimizer_0"; empty if the folder is the output itself. `reader` must outlive
  /// `write`.
  void add(const std::string& name, DcpFolder folder, TensorReader& reader);
  /// Copies from `from`, a save folder, the files that do not depend on the form: scheduler,
  /// scaler, the program's values, and the random states of ranks that the new world has.
  void add_other_state();
  /// Writes, checks and commits. The manifest's list of files and world size are filled in.
  Result write(std::optional<Manifest> manifest);

 private:
  struct Part {
    std::string name;
    DcpFolder folder;
    TensorReader* reader = nullptr;
  };
  void write_manifest(const std::filesystem::path& folder, Manifest manifest) const;

  InputPath from_;
  std::filesystem::path out_;
  const Options& options_;
  std::vector<Part> parts_;
  std::vector<InputPath> copies_;
};

/// Returns the manifest of a SHARDED_STATE_DICT with this state. The values of other models are
/// kept.
Manifest manifest_of(const Stored& stored);

}  // namespace acc::checkpoint::conversion
