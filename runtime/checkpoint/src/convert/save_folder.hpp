// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/convert/convert.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/manifest.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// A DCP folder to be written, cut in rows as FSDP cuts, and the sources of its tensors.
struct DcpFolder {
  dcp::FolderPlan plan;
  /// One per planned tensor; null stands for an fp32 scalar with the value `step`.
  std::vector<const StoredTensor*> sources;
  float step = 0.0F;

  [[nodiscard]] std::uint64_t nbytes() const;
  /// Sets the world size and the cut rule. Called after the last tensor was added.
  void cut(int num_processes);
};

/// Fills an existing folder: the ranks' files in parallel, then `.metadata`.
void write_dcp_folder(const std::filesystem::path& folder, const DcpFolder& from,
                      TensorReader& reader, int num_threads, ProgressMeter& meter);

/// True if a path may be part of such a folder.
bool is_dcp_file(const std::string& path);

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
