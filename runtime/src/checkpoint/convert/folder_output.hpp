#pragma once

#include "checkpoint/files/atomic_folder.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// The folder of an output, while it is filled: complete or absent.
class NewFolder {
 public:
  /// `overwrite`: whether a folder that holds nothing but `is_ours` may be replaced. Throws
  /// Error(config) where the target is there and may not.
  NewFolder(const std::filesystem::path& target,
            const std::function<bool(const std::string& path)>& is_ours, bool overwrite,
            const std::vector<std::string>& folders = {});
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_.temporary(); }
  std::filesystem::path commit();

 private:
  AtomicFolder folder_;
  bool committed_ = false;
};

}  // namespace acc::checkpoint::conversion
