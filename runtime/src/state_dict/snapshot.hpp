// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/manifest.hpp"
#include "state_dict/forms.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::state_dict {

/// What one rank writes in a save: its values, the plans of folders, and the contents of small
/// files. Taken by the thread that trains; no file is opened. While it is written it reads the
/// arrays of the models, unless they have been copied.
struct Snapshot {
  /// A file that this rank writes.
  struct File {
    std::string name;  ///< in the save folder
    /// Tries to write it. In the FULL form collective: a rank that has failed calls it too.
    std::function<void(const std::filesystem::path& path, Attempt& attempt, ProgressMeter& meter)>
        write;
  };
  /// A file of any rank that must exist before the folder gets its name.
  struct Expected {
    std::string path;
    int rank = 0;  ///< the rank that writes it
    std::optional<std::uint64_t> nbytes = {};
    std::optional<std::uint32_t> crc32 = {};
    bool is_small = false;  ///< the manifest stores its checksum
  };

  int rank = 0;
  int ranks = 1;
  std::vector<PlannedFolder> folders;  ///< each rank writes its file of each
  std::vector<File> files;
  std::vector<Expected> expected;          ///< without those of `folders`
  std::vector<std::vector<HeldPtr>> held;  ///< values that this rank writes, by model
  /// Copies of `held`, once there are some. The values are complete when all have finished.
  std::vector<std::shared_ptr<sharding::LateCopy>> copies;
  SavedState state;          ///< the program's values, whose names are not checked yet
  Manifest manifest;         ///< without files and plans
  std::uint64_t nbytes = 0;  ///< size of the values that this rank writes, without buffers
};

/// Takes the snapshot of this rank. parts: at least one. Throws Error(not_supported), on every rank
/// alike, for values that files cannot hold.
Snapshot take_snapshot(std::span<const Part> parts, const SavedState& state);

/// Copies the values to host memory: the snapshot no longer changes with the models, may be written
/// on another thread, which finishes and ends its copies first, and may outlive the models. Values
/// that only the runtime changes are copied later: by the other thread, or before they change. Not
/// for the FULL form and for save_16bit_model, which gather. The memory belongs to the models and
/// is used again; an earlier copy must have been written. Throws Error(out_of_memory). parts: those
/// of the snapshot.
void copy_values(Snapshot& snapshot, std::span<const Part> parts);

}  // namespace acc::state_dict
