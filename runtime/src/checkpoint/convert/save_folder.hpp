#pragma once

#include "checkpoint/convert/convert.hpp"
#include "checkpoint/convert/dcp_folder.hpp"
#include "checkpoint/files/manifest.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// An output of DCP folders: one alone, or a save folder (checkpoint-formats 4) with several, other
/// files and our manifest.
class SaveFolder {
 public:
  SaveFolder(std::filesystem::path out, const Options& options)
      : out_(std::move(out)), options_(options) {}

  /// `name`: "optimizer_0"; empty where it is the output itself. `reader` outlives `write`.
  void add(const std::string& name, DcpFolder folder, TensorReader& reader);
  /// Of another save folder, what is the same in any form of it: scheduler, scaler, the program's
  /// values, random states of ranks that there will be.
  void add_other_state(const std::filesystem::path& from);
  /// Writes, checks and commits. `manifest`: files and world are filled in.
  Result write(std::optional<Manifest> manifest);

 private:
  struct Part {
    std::string name;
    DcpFolder folder;
    TensorReader* reader = nullptr;
  };
  void write_manifest(const std::filesystem::path& folder, Manifest manifest) const;

  std::filesystem::path out_;
  const Options& options_;
  std::vector<Part> parts_;
  std::vector<std::filesystem::path> copies_;
};

/// Of a SHARDED_STATE_DICT with this state; what is said of other models stays.
Manifest manifest_of(const Stored& stored);

}  // namespace acc::checkpoint::conversion
