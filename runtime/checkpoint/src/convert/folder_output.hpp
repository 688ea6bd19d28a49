// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/files/input_path.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// The folder of an output while it is filled. Without `commit` it is removed.
class NewFolder {
 public:
  /// `overwrite`: true if an existing folder may be replaced, provided that it holds only files for
  /// which `is_ours` is true. Throws Error(config) if the target exists and may not be replaced.
  NewFolder(const std::filesystem::path& target,
            const std::function<bool(const std::string& path)>& is_ours, bool overwrite,
            const std::vector<std::string>& folders = {});
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_.temporary(); }
  /// Gives the folder its name, if what it was made of is unchanged.
  std::filesystem::path commit(const InputPath& from);

 private:
  AtomicFolder folder_;
  bool committed_ = false;
};

}  // namespace acc::checkpoint::conversion
